"""Protocols, metrics and baselines: how good predictions are, from imported measurements."""
