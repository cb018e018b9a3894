"""Programs that the stack's own interpreter runs on a node, beside Ray."""
