"""Plots of what was measured and predicted."""
