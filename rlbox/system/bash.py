"""What bash says of a script that it reads without running it."""

from __future__ import annotations

import re
from typing import NamedTuple

from rlbox.errors import TimedOut, WorkFailed
from rlbox.system.command import run_command
from rlbox.values import Command


class BashSyntaxError(NamedTuple):
    line: int
    message: str


def find_syntax_error_if_bash_available(script: str) -> BashSyntaxError | None:
    """Return the first error of `bash -n`; None also where no bash of version 4 or newer is at hand."""
    # extended patterns are on where the script turns them on, which -n does not run
    check = f"((BASH_VERSINFO < 4)) || exec bash {'-O extglob' * ('extglob' in script)} -n"
    try:
        command = Command(argv=("bash", "-c", check), env={"LC_ALL": "C", "BASH_ENV": ""}, timeout_s=20)
        outcome = run_command(command, script)
    except (WorkFailed, TimedOut):
        return None
    found = re.search(r"line (\d+): (.+)", outcome.stderr)
    return BashSyntaxError(int(found[1]), found[2]) if found and not outcome.ok else None
