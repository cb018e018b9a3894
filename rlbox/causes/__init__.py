"""The sentence that says why a stage ended, and the exit code that belongs to it."""
