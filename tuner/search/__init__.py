"""Which of some configurations is fastest, timing as few of them as asked."""
