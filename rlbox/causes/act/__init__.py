"""What acts in room `causes`."""
