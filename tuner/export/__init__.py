"""Decisions in the form of other programs: vLLM's tables, Inductor's look-up table, Triton's."""
