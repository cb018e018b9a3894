"""What acts in room `evidence`."""
