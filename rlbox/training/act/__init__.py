"""What acts in room `training`."""
