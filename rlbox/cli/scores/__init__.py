"""Verbs about scores."""
