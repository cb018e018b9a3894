"""Measured goals of rlbox: each is a ratio to a command that everybody can run on the same machine."""
