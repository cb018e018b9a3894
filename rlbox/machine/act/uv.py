"""Where the uv is that comes with rlbox."""

from __future__ import annotations


def find_uv() -> str:
    """Return the path of the uv that was installed with rlbox."""
    import uv

    return uv.find_uv_bin()
