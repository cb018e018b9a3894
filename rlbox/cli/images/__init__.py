"""Verbs about targets, their locks and images."""
