"""The verbs of several machines."""
