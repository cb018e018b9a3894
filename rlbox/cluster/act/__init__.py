"""What acts in room `cluster`."""
