"""What reads exports and has the stack's interpreter compare tensors."""
