"""A machine without engine brought to the lock, and back."""
