"""What acts in room `secrets`."""
