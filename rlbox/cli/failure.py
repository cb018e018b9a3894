"""The one place where errors become text and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from rlbox import __version__
from rlbox.errors import RlboxError
from rlbox.printable import printable


def answer_failures(words: Sequence[str], step: Callable[[], object]) -> int:
    """Carry out the command line `words` by `step`; every failure ends here as what / where / next and an exit code."""
    try:
        code = step()
        return code if isinstance(code, int) else 0
    except RlboxError as error:
        return _report(error, words)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:  # the one place where a bug is caught
        from rlbox.cli.interrupts import is_interrupt

        return _interrupted() if is_interrupt(error) else _report_bug(error)


def _interrupted() -> int:
    sys.stderr.write("rlbox: interrupted\n")
    return 130


def _report(error: RlboxError, words: Sequence[str]) -> int:
    own = words[: words.index("--")] if "--" in words else words  # behind it stand a command's own words
    if "--json" in own:
        import json

        facts = {"what": error.what, "where": error.where, "next": error.next_step, "exit_code": error.exit_code}
        sys.stdout.write(printable(json.dumps({"schema": 1, "error": facts}, indent=2, ensure_ascii=False)) + "\n")
    sys.stderr.write(printable(f"rlbox: error: {error}\n"))
    return error.exit_code


def _report_bug(error: Exception) -> int:
    import traceback

    from rlbox.files.act.folders import cache_folder, write_atomic

    path = cache_folder("logs", f"bug-{os.getpid()}.log")
    text = "".join(traceback.format_exception(error))
    try:
        write_atomic(path, f"rlbox {__version__}\n{text}", mode=0o600)
    except OSError:
        sys.stderr.write(printable(text))
    told = f"rlbox: bug: {type(error).__name__}: {error}\n  where: {path}\n  next:  report it with that file\n"
    sys.stderr.write(printable(told))
    return 3
