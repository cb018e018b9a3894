"""Scripts of a node: two modules for its own python3 (3.6 or newer), sent with each call; one for the stack's."""
