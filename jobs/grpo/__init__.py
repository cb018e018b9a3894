"""Programs of the job `grpo`: the fake data set, its reward, the proof that a machine has passed the debug profile."""
