"""The isolation that model-written code would run in."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rlbox.doctor.catalogue import make_finding
from rlbox.findings import Finding, listed
from rlbox.foreign import parse_json
from rlbox.sandbox.plan import has_walls
from rlbox.system.command import run_command
from rlbox.values import Command


def check_sandbox(timeout_s: float) -> Iterator[Finding]:
    argv = (sys.executable, "-m", "rlbox.sandbox", "probe")
    answer = parse_json(run_command(Command(argv=argv, timeout_s=timeout_s, cwd="/")).stdout)
    reasons = [f"{layer}: {reason}" for layer, reason in sorted(answer["missing"].items())]
    if not has_walls(answer["layers"]):
        yield make_finding("sandbox-weak", level="warning", seen=listed(reasons) or answer["strength"])
