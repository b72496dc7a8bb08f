"""GPUs as frozen specs: one exact device each, every number with its source."""
