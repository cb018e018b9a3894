"""What acts in room `gate`."""
