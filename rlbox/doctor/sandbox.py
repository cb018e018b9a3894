"""The isolation that model-written code would run in."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rlbox.findings import Finding, listed
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.sandbox.plan import has_walls
from rlbox.system.command import run_command
from rlbox.values import Command


def check_sandbox(timeout_s: float) -> Iterator[Finding]:
    argv = (sys.executable, "-m", "rlbox.sandbox", "probe")
    answer = parse_json(run_command(Command(argv=argv, timeout_s=timeout_s, cwd="/")).stdout)
    reasons = [f"{layer}: {reason}" for layer, reason in sorted(answer["missing"].items())]
    if not has_walls(answer["layers"]):
        yield Finding(
            id="sandbox-weak",
            level="warning",
            title=_("this machine cannot isolate code that a model wrote: the sandbox does not run any"),
            seen=listed(reasons) or answer["strength"],
            where=_("container"),
            remedy=_("take a machine whose kernel has Landlock (5.13 or newer)"),
        )
