"""An image as one file."""
