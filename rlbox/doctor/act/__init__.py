"""What acts in room `doctor`."""
