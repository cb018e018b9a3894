"""The browser that tests and pictures of pages use: one on PATH, else what `scripts/ensure-test-tools.sh` unpacked."""

from __future__ import annotations

import shutil
from pathlib import Path

_UNPACKED = Path(__file__).resolve().parents[1] / ".venv/tools/chromium/chromium"
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str:
    """Return the path of a Chromium; empty without one."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), "")
    return found or (str(_UNPACKED) if _UNPACKED.is_file() else "")
