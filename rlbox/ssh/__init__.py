"""A machine that is reached over ssh: one connection for all that is asked of it, and files there and back."""
