"""The one place that starts processes: `run_command` waits for a short one, `start_command` leaves a long one be."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple, TypeAlias

from rlbox.amounts import exact_duration_text
from rlbox.errors import TimedOut, WorkFailed
from rlbox.i18n import _
from rlbox.values import Command, Outcome

ProcessHandle: TypeAlias = "subprocess.Popen[bytes]"
Stream: TypeAlias = "int | IO[bytes] | None"

PIPE, DEVNULL, STDOUT = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
"""What a stream of a process may be beside an open file: a pipe to here, nothing, the same as its standard output."""


def start_command(
    command: Command,
    *,
    base_env: Mapping[str, str] | None = None,
    stdin: Stream = DEVNULL,
    stdout: Stream = None,
    stderr: Stream = None,
    new_session: bool = True,
    pass_fds: Sequence[int] = (),
    die_with_parent: bool = False,
) -> ProcessHandle:
    """Start `command` and return its process; its `timeout_s` is for the caller to mind.

    `base_env`: What `command.env` is added to, in place of the caller's environment.
    `new_session`: Neither Ctrl-C nor a hang-up of the terminal reaches it.
    `die_with_parent`: It is told to end when the thread that started it ends, however this process dies.
    """
    from rlbox.system.libc import (
        set_parent_death_sigterm_die_if_orphaned,  # before the fork, behind which nothing may be imported
    )

    return subprocess.Popen(
        command.argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=_environment(command, base_env),
        cwd=command.cwd or None,
        start_new_session=new_session,
        pass_fds=tuple(pass_fds),
        preexec_fn=functools.partial(set_parent_death_sigterm_die_if_orphaned, os.getpid())
        if die_with_parent
        else None,
    )


class StdoutAndStderrBytes(NamedTuple):
    stdout: bytes
    stderr: bytes


def communicate_or_leave_running(process: ProcessHandle, stdin: bytes, timeout_s: float) -> StdoutAndStderrBytes | None:
    """Give a process with three pipes its input and return all it says until it ends; None: it has not by then."""
    try:
        return StdoutAndStderrBytes(*process.communicate(stdin or None, timeout=timeout_s))
    except subprocess.TimeoutExpired:
        return None


def wait_for_exit(process: ProcessHandle, timeout_s: float) -> int | None:
    """Wait until a process has ended and return how (negative for a signal); None: it has not by then."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None


def run_in_foreground(command: Command, *, base_env: Mapping[str, str] | None = None) -> int:
    """Give `command` this terminal until it ends, Ctrl-C with it, and return its exit code, negative for a signal."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)  # not SIG_IGN, which would be inherited
    try:
        return start_command(command, base_env=base_env, stdin=None, new_session=False).wait()
    finally:
        signal.signal(signal.SIGINT, before)


def run_command(command: Command, stdin: str = "", *, base_env: Mapping[str, str] | None = None) -> Outcome:
    """Run `command` to its end and return what it left behind, whatever its exit code.

    Raises WorkFailed: the program is not there, or cannot be started.
    Raises TimedOut: it ran longer than its `timeout_s`; it has been killed.
    """
    try:
        done = subprocess.run(
            command.argv,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=_environment(command, base_env),
            cwd=command.cwd or None,
            timeout=command.timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise WorkFailed(_("{argv}: no such program").format(argv=command.argv[0])) from error
    except subprocess.TimeoutExpired as error:
        raise TimedOut(
            _("{argv} took longer than {limit}").format(
                argv=command.argv[0], limit=exact_duration_text(command.timeout_s or 0)
            )
        ) from error
    return Outcome(command=command, exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)


def run_command_or_raise(
    command: Command, failure_message: str, next_step: str = "", base_env: Mapping[str, str] | None = None
) -> Outcome:
    """Run `command` and return its outcome; a non-zero exit is a `WorkFailed` that quotes its last lines."""
    outcome = run_command(command, base_env=base_env)
    if not outcome.ok:
        tail = "\n".join(f"  | {line}" for line in (outcome.stderr or outcome.stdout).strip().splitlines()[-15:])
        raise WorkFailed(
            _("{what} (exit code {exit_code})\n{tail}").format(
                what=failure_message, exit_code=outcome.exit_code, tail=tail
            ),
            where=" ".join(command.argv[:6]),
            next_step=next_step,
        )
    return outcome


def _environment(command: Command, base_env: Mapping[str, str] | None) -> dict[str, str]:
    return {**(os.environ if base_env is None else base_env), **command.env}
