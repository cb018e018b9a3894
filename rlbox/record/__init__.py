"""What a run writes about itself, who holds the disk, and what the next command makes of a dead run."""
