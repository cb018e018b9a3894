"""Make a signature of a failure that nobody knows, out of its own log."""
