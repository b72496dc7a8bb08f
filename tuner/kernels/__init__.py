"""Reference Triton kernels."""
