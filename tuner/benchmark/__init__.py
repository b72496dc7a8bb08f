"""One problem measured on one device, the prediction beside it."""
