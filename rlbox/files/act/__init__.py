"""What acts in room `files`."""
