"""Programs of the job `learn`."""
