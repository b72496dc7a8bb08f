"""Measurements: their schema, public sources, quality gates and splits."""
