"""Where these tests find what other folders share."""

from __future__ import annotations

import sys
from pathlib import Path

ENGINE = str(Path(__file__).resolve().parents[1] / "engine")
if ENGINE not in sys.path:
    sys.path.insert(0, ENGINE)
