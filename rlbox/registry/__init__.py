"""Speak with registries; push, attach."""
