"""Measuring many problems and configurations on one GPU or on a fleet, resumable at any point."""
