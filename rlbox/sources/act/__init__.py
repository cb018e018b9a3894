"""What acts in room `sources`."""
