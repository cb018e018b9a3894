"""Does a job fit its machine (GPUs, memory, disk, arithmetic), and which setting nearest to it does."""
