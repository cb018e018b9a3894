"""What acts in room `logs`."""
