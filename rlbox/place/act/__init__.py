"""What acts in room `place`."""
