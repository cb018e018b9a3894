"""What acts in room `image`."""
