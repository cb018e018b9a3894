"""What acts in room `report`."""
