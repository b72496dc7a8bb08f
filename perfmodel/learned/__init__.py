"""The learned correction: features, trees, intervals, and the files that hold them."""
