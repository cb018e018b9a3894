"""rlbox: reproducible containers and gated runs for RL post-training."""

__version__ = "0.1.0"
