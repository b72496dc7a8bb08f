"""One decision: what the model says, what can run, what is timed, and the account of it."""
