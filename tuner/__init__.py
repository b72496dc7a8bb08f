"""Picks tile configurations of Triton kernels, safely."""
