"""Programs of the job `gkd`: checks before the run, a small model for `tiny`, and a reward that is always 0."""
