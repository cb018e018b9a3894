"""Checkpoints that are judged while a training writes them."""
