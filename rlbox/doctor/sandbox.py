"""The isolation that model-written code would run in."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rlbox.doctor.check_group import CheckGroup
from rlbox.errors import TimedOut
from rlbox.findings import Finding, listed
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.sandbox.plan import IsolationLevel
from rlbox.system.command import run_command
from rlbox.values import Command


def _walls(strength: IsolationLevel | None) -> Iterator[Finding]:
    if strength is not None and not strength.contained:
        yield Finding(
            id="sandbox-weak",
            level="warning",
            title=_("there is no wall here for code that a model wrote: the sandbox refuses to run any"),
            seen=listed([f"{layer}: {why}" for layer, why in sorted(strength.missing.items())]) or strength.name,
            where=_("container"),
            remedy=_("take a machine whose kernel has Landlock (5.13 or newer)"),
        )


check_sandbox = CheckGroup(checks=(_walls,))


def probe_sandbox(timeout_s: float) -> IsolationLevel | None:
    """Return the strength of a program's walls; None when that was not known in time."""
    try:
        done = run_command(Command(argv=(sys.executable, "-m", "rlbox.sandbox", "probe"), timeout_s=timeout_s, cwd="/"))
        told = parse_json(done.stdout)
    except (OSError, TimedOut, ValueError):
        return None
    return IsolationLevel.of(told["layers"], told["missing"])
