"""Programs of the job `sft`: data, training, evaluation of every checkpoint, choice of the best one."""
