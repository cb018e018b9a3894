"""The one place that starts a short-lived process and waits for it."""

from __future__ import annotations

import os
import subprocess

from rlbox.errors import TimedOut, WorkFailed
from rlbox.values import Command, Outcome


def run_command(command: Command, stdin: str = "") -> Outcome:
    """Run `command` to its end and return what it left behind, whatever its exit code.

    Raises
    ------
    WorkFailed
        The program is not there.
    TimedOut
        It ran longer than its `timeout_s`; it has been killed.
    """
    try:
        done = subprocess.run(
            command.argv,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **command.env},
            cwd=command.cwd or None,
            timeout=command.timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise WorkFailed(f"{command.argv[0]}: no such program") from error
    except subprocess.TimeoutExpired as error:
        raise TimedOut(f"{command.argv[0]} took longer than {command.timeout_s:g} s") from error
    return Outcome(command=command, exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)


def check_command(command: Command, what: str, next_step: str = "") -> Outcome:
    """Run `command` and return its outcome; a non-zero exit is a `WorkFailed` that quotes its last lines."""
    outcome = run_command(command)
    if not outcome.ok:
        tail = "\n".join(f"  | {line}" for line in (outcome.stderr or outcome.stdout).strip().splitlines()[-15:])
        raise WorkFailed(
            f"{what} (exit code {outcome.exit_code})\n{tail}", where=" ".join(command.argv[:6]), next_step=next_step
        )
    return outcome
