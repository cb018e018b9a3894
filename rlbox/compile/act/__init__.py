"""What acts in room `compile`."""
