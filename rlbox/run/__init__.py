"""Start, follow, resume and stop a run, at each place."""
