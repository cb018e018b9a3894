"""What acts in room `machine`."""
