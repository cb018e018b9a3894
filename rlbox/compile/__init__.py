"""Compile a locked source into a wheel, once: without network, at fixed paths, going on where it was killed."""
