"""What acts in room `registry`."""
