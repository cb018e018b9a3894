"""What acts on the verdict on a stack."""
