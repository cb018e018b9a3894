"""`python -m rlbox.vast FOLDER`: keep the job of a rented instance going. Started by `rlbox vast up`, not by people."""

from __future__ import annotations

import sys
from pathlib import Path

from rlbox.vast.job_agent import run_agent

if __name__ == "__main__":
    raise SystemExit(run_agent(Path(sys.argv[1])))
