"""What acts in room `engine`."""
