"""`python -m rlbox.vast FOLDER`: keep the job of a rented instance going. Started by `rlbox vast up`, not by people."""

from __future__ import annotations

import sys
from pathlib import Path

from rlbox.vast.keeper import keep

if __name__ == "__main__":
    raise SystemExit(keep(Path(sys.argv[1])))
