"""What this rlbox calls itself; of all files of an image the one that may differ without another image."""

__version__ = "0.1.0"
