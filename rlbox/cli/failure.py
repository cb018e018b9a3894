"""The one place where errors become text and exit codes."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import click

from rlbox import __version__
from rlbox.app import DryRun, write_json
from rlbox.cli.help import translate_usage_message
from rlbox.cli.terminal import NO_READER, OutputLostError, discard_output
from rlbox.errors import ISSUES, NodeError, RlboxError, SpecError
from rlbox.i18n import _, join, translate
from rlbox.terminal import remove_controls

_OTHER, _ROOM = _("name another"), _("free space there, or name another place")
_OF_THE_MACHINE = {
    errno.EACCES: _("make it readable and writable for you, or name another"),
    errno.EPERM: _("run it as its owner, or name another"),
    errno.EROFS: _("name another place"),
    errno.ENAMETOOLONG: _OTHER,
    errno.ELOOP: _OTHER,
    errno.ENOTDIR: _OTHER,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EIO: _("name another place: `dmesg` shows what is wrong with this disk"),
}
"""Errors that are no bug wherever they come from, and the next step of each."""
_LONGEST = 200


class RefusedDryRunError(Exception):
    """A dry run that came to an end before there was a plan: what it met ends in a verdict, too."""

    def __init__(self, dry: DryRun) -> None:
        super().__init__()
        self.dry = dry


def run_and_report_failures(argv: Sequence[str], run_command: Callable[[], object]) -> int:
    """Run a command line; every failure ends here as what, where and next, and an exit code."""
    try:
        return _answer(argv, run_command)
    except OutputLostError as error:  # of a result, or of what was said of another failure
        return _report_lost(error)


def _answer(words: Sequence[str], step: Callable[[], object]) -> int:
    try:
        code = step()
        sys.stdout.flush()  # who cannot take the result is met here, and not after the last line of Python
        return code if isinstance(code, int) else 0
    except OutputLostError:
        raise
    except RefusedDryRunError as refused:
        return _report_dry(refused.dry, words)
    except RlboxError as error:
        return _report(error, words)
    except click.UsageError as error:
        return _report_usage(error, words)
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:  # the one place where a bug is caught
        from rlbox.cli.terminal import is_interrupt

        if is_interrupt(error):
            return _interrupted()
        if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
            return _report(_refusal(error), words)
        return _report_bug(error)


def _refusal(error: OSError) -> NodeError:
    """Return what this machine refused, of a file where it names one, when no verb knew to say it better."""
    name = str(error.filename or "")
    shown = name if len(name) < _LONGEST else f"{name[:_LONGEST]}…"
    return NodeError(
        _("this machine refuses: {strerror}").format(strerror=error.strerror),
        where=shown,
        next_step=_OF_THE_MACHINE[error.errno or 0],
    )


def _interrupted() -> int:
    sys.stderr.write("rlbox: interrupted\n")
    return 130


def _report_lost(error: OutputLostError) -> int:
    if not error.left:
        _print_error(error)
    discard_output()
    return NO_READER if error.left else error.exit_code


def _report(error: RlboxError, words: Sequence[str]) -> int:
    _print_error(error)
    return _as_json(error, words)


def _report_dry(dry: DryRun, words: Sequence[str]) -> int:
    """Report what ended a dry run as the real one would, and the verdict on stdout; its exit code is the first's."""
    error = dry.refused[-1]
    _print_error(error)
    if _wants_json(words):
        with contextlib.suppress(OutputLostError):
            write_json({"error": error.as_json(), "verdict": dry.as_json("")})
        return dry.exit_code
    lines = replace(dry, refused=dry.refused[:-1]).lines("")[:-1] + dry.lines("")[-1:]
    sys.stdout.write(remove_controls(translate(join("\n", lines))) + "\n")
    sys.stdout.flush()
    return dry.exit_code


def _print_error(error: RlboxError) -> None:
    _print(_("rlbox: error: {error}").format(error=error))


def _print(text: str) -> None:
    sys.stderr.write(remove_controls(translate(text)) + "\n")


def _report_usage(error: click.UsageError, words: Sequence[str]) -> int:
    path = error.ctx.command_path if error.ctx else "rlbox"
    bare = isinstance(error, click.exceptions.NoArgsIsHelpError)  # its message is the whole help
    what = _("a verb is missing") if bare else error.format_message()
    _print(_usage_text(error))
    return _as_json(SpecError(what, where=path, next_step=f"{path} --help"), words)


def _usage_text(error: click.UsageError) -> str:
    """Return what click would show, whose own `show` prints at once."""
    message = translate_usage_message(error)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # its message is the whole help
        return message
    lines = [error.ctx.get_usage()] if error.ctx else []
    if error.ctx and error.ctx.command.get_help_option(error.ctx):
        path, option = error.ctx.command_path, error.ctx.help_option_names[-1]
        lines += [_("Try '{command} {option}' for help.").format(command=path, option=option)]
    lines += [""] if error.ctx else []
    return join("\n", [*lines, _("Error: {message}").format(message=message)])


def _as_json(error: RlboxError, words: Sequence[str]) -> int:
    """Write the error as JSON where that was asked for; return its exit code, which a lost output does not change."""
    if _wants_json(words):
        try:
            write_json({"error": error.as_json()})
        except OutputLostError:
            discard_output()
    return error.exit_code


def _wants_json(words: Sequence[str]) -> bool:
    return "--json" in (words[: words.index("--")] if "--" in words else words)  # behind it stand a command's own words


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
        sys.stderr.write(remove_controls(text))
        step = _("  next:  report it with the lines above: {page}").format(page=ISSUES)
    _print(join("\n", [what, step]))
    return 3
