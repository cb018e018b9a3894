"""What acts in room `diagnose`."""
