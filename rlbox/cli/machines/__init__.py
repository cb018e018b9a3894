"""Verbs about machines and what stands beside a training."""
