"""What a user writes of a target, its lock, a locked file, a patch."""
