"""What acts in room `store`."""
