"""How each kind of text is read: shell, Python, YAML, Dockerfiles, notes, data."""
