"""What a user writes of a job, what was told at the start, and the plan made of both."""
