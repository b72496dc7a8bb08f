"""Compiling kernels in worker processes: a crash or a hang costs one configuration."""
