"""What acts in room `lock`."""
