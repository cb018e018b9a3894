"""Verbs that begin something."""
