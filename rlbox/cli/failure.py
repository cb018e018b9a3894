"""The one place where errors become text and exit codes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import click

from rlbox import __version__
from rlbox.app import DryRunOutcome, print_json_with_schema_version
from rlbox.cli.help import translate_usage_message
from rlbox.errors import ISSUES, MachineError, RlboxError, SpecError
from rlbox.i18n import _, join, translate
from rlbox.terminal import sanitize_for_terminal

_BROKEN_PIPE_EXIT_CODE = 141
"""128 and SIGPIPE, as of a program that writes to a pipe that nobody reads any more."""
_OTHER, _ROOM = _("name another"), _("free space there, or name another place")
_NEXT_STEPS = {
    errno.EACCES: _("make it readable and writable for you, or name another"),
    errno.EPERM: _("run it as its owner, or name another"),
    errno.EROFS: _("name another place"),
    errno.ENAMETOOLONG: _OTHER,
    errno.ELOOP: _OTHER,
    errno.ENOTDIR: _OTHER,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EIO: _("name another path: `dmesg` shows the problem of this disk"),
}
"""Errors of the machine, which are no bug wherever they come from, and the next step of each."""


class DryRunEndedBeforePlanError(Exception):
    """A dry run that came to an end before there was a plan: what it met ends in a verdict, too."""

    def __init__(self, dry: DryRunOutcome) -> None:
        super().__init__()
        self.dry = dry


def reopen_std_streams_and_escape_unencodable() -> None:
    """Open /dev/null for each standard stream that is closed; escape characters that the locale lacks.

    The number of a closed stream would be that of the next file that is opened, and messages would be written into it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115 - as long as the process lives
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def run_and_report_failures(argv: Sequence[str], run_command: Callable[[], object]) -> int:
    """Run a command line; every failure ends here as what, where and next, and an exit code."""
    try:
        try:
            code = run_command()
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except Exception as error:
            return _report_failure(error, argv)
    except KeyboardInterrupt:
        _print(_("rlbox: interrupted"))
        return 130
    except BrokenPipeError:
        _discard_output()
        return _BROKEN_PIPE_EXIT_CODE


def _report_failure(error: Exception, words: Sequence[str]) -> int:
    dry = error.dry if isinstance(error, DryRunEndedBeforePlanError) else None
    if isinstance(error, BrokenPipeError):
        raise error
    if dry:
        failure = dry.refusals[-1]
    elif isinstance(error, RlboxError):
        failure = error
    elif isinstance(error, click.UsageError):
        failure = _convert_usage_error(error, words)
    elif isinstance(error, OSError) and error.errno in _NEXT_STEPS:
        failure = _convert_machine_error(error)
    else:
        return _report_bug(error)
    # --json keeps what the error itself says, so that a dry run and the real one agree
    data = {"error": failure.as_json(), **({"verdict": dry.verdict_to_json("")} if dry else {})}
    command = _command_path(words)
    failure.where, failure.next_step = failure.where or command, failure.next_step or f"{command} --help"
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # its message is the whole help
        _print(error.message)
    else:
        _print(_("rlbox: error: {error}").format(error=failure))
    if "--json" in (words[: words.index("--")] if "--" in words else words):  # behind it stand a command's own words
        print_json_with_schema_version(data)
    elif dry:  # the verdict that the real command would have ended with
        lines = replace(dry, refusals=dry.refusals[:-1]).format_comments("")[:-1] + dry.format_comments("")[-1:]
        sys.stdout.write(sanitize_for_terminal(translate(join("\n", lines))) + "\n")
        sys.stdout.flush()
    return dry.expected_exit_code if dry else failure.exit_code


def _command_path(words: Sequence[str]) -> str:
    return f"rlbox {words[0]}" if words and not words[0].startswith("-") else "rlbox"


def _convert_usage_error(error: click.UsageError, words: Sequence[str]) -> SpecError:
    path = error.ctx.command_path if error.ctx else _command_path(words)  # an option's own error has no context
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return SpecError(_("a command is missing"), where=path, next_step=f"{path} --help")
    usage = " ".join([path, *error.ctx.command.collect_usage_pieces(error.ctx)]) if error.ctx else path
    return SpecError(translate_usage_message(error), where=usage, next_step=f"{path} --help")


def _convert_machine_error(error: OSError) -> MachineError:
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()
    what = _("this machine refuses: {strerror}").format(strerror=error.strerror)
    return MachineError(what, where=str(error.filename or ""), next_step=_NEXT_STEPS[error.errno or 0])


def _discard_output() -> None:
    """Send what is still to be written to standard output nowhere, or Python reports it once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _print(text: str) -> None:
    sys.stderr.write(sanitize_for_terminal(translate(text)) + "\n")


def _report_bug(error: Exception) -> int:
    import traceback

    from rlbox.system.files import cache_path, write_atomic

    path = cache_path("logs", f"bug-{os.getpid()}.log")
    text = "".join(traceback.format_exception(error))
    what = _("rlbox: bug: {name}: {error}").format(name=type(error).__name__, error=str(error))
    try:
        write_atomic(path, f"rlbox {__version__}\n{text}", mode=0o600)
        step = _("  where: {path}\n  next:  report it with that file: {page}").format(path=path, page=ISSUES)
    except OSError:
        sys.stderr.write(sanitize_for_terminal(text))
        step = _("  next:  report it with the lines above: {page}").format(page=ISSUES)
    _print(join("\n", [what, step]))
    return 3
