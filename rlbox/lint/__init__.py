"""What no longer works in scripts, notes and specs."""
