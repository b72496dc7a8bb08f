"""One command on one GPU for so many minutes: what can be said of the device and of our kernels."""
