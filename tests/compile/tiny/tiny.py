"""What `_tiny` is built beside."""
