"""What acts in room `record`."""
