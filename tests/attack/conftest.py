"""Where the attacks find what other folders share."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("engine", "supervisor") if str(TESTS / name) not in sys.path]
