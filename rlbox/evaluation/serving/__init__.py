"""How exports are served: one engine for all, its weights exchanged; or several that share the work."""
