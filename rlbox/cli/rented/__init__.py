"""Verbs about rented machines: there and back."""
