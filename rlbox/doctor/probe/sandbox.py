"""Ask the sandbox how strong its walls are here, by having it run a program."""

from __future__ import annotations

import sys

from rlbox.errors import TimedOut
from rlbox.foreign import parse_json
from rlbox.sandbox.strength import Strength
from rlbox.system.command import run_command
from rlbox.values import Command


def probe_sandbox(timeout_s: float) -> Strength | None:
    """Return the strength of a program's walls; None when that was not known in time."""
    try:
        done = run_command(Command(argv=(sys.executable, "-m", "rlbox.sandbox", "probe"), timeout_s=timeout_s, cwd="/"))
        told = parse_json(done.stdout)
    except (OSError, TimedOut, ValueError):
        return None
    return Strength.of(told["layers"], told["missing"])
