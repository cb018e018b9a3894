"""What acts in room `archive`."""
