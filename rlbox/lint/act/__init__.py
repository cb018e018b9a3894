"""What acts in room `lint`."""
