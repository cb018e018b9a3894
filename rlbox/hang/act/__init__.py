"""What acts in room `hang`."""
