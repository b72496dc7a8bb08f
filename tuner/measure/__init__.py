"""Timing candidates: the device behind one protocol, its implementations, and trust in numbers."""
