"""rlbox: reproducible containers and gated runs for RL post-training."""

from rlbox.version import __version__ as __version__
