"""Where the table of a campaign comes from: date, tree and machine."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def provenance(table: Path) -> str:
    """Date, tree and machine of a result, for the head of its table."""
    commit = _git("rev-parse", "--short=12", "HEAD^{tree}")
    changed = " and changes" if _git("status", "--porcelain", "--", ".", f":!{table.relative_to(CHECKOUT)}") else ""
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return f"{date}, tree {commit or 'unknown'}{changed}, Python {platform.python_version()}, {os.cpu_count()} CPUs"


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(CHECKOUT), *words], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
