"""What stands beside a training: parts of its stack, data, checkpoints, weights in memory, GPUs."""
