"""Which versions fit together, and what would."""
