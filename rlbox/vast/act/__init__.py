"""What acts in room `vast`."""
