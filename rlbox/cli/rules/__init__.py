"""Verbs about rules: fixes, what no longer works, what fits together."""
