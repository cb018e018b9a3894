"""The words of `words.toml`, by which lines of logs are told apart, compiled when they are first asked for."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from rlbox.diagnose.read.trace import NAME
from rlbox.foreign import toml_table

_FILE = Path(__file__).with_name("words.toml")
_SIGNAL = (
    r"(?:Killed|Segmentation fault|Aborted|Bus error|Illegal instruction|Floating point exception"
    r"|Trace/breakpoint trap|Hangup|Terminated|Quit|User defined signal [12]|Alarm clock|CPU time limit exceeded"
    r"|File size limit exceeded|Bad system call)"
)
_CANNOT = (
    r"(?:[cC]annot|[cC]an't|[cC]an not|[cC]ould not|[cC]ouldn't|[uU]nable to|[fF]ailed to|[iI]nvalid|[uU]nrecognized"
    r"|[uU]nknown|[nN]o such|[pP]ermission denied|[nN]ot found)"
)
_ERRNO = (
    r"(?i:connection (?:refused|timed out|reset by peer)|no route to host|network is unreachable|permission denied"
    r"|no such file or directory|no space left on device|operation not permitted|input/output error|stale file handle"
    r"|is a directory|not a directory|read-only file system|device or resource busy|exec format error|text file busy"
    r"|temporary failure in name resolution|name or service not known|could not resolve hostname .{1,80}"
    r"|too many open files|cannot allocate memory|resource temporarily unavailable|host key verification failed"
    r"|disk quota exceeded|transport endpoint is not connected|file exists|broken pipe|invalid argument|i/o timeout)"
)
_STAND_INS = {"<NAME>": NAME, "<SIGNAL>": _SIGNAL, "<CANNOT>": _CANNOT, "<ERRNO>": _ERRNO}


@functools.cache
def _tables() -> dict[str, Any]:
    return toml_table(_FILE.read_text(encoding="utf-8"))


@functools.cache
def words(table: str, key: str) -> tuple[str, ...]:
    """Return the expressions or texts of a key of `words.toml`."""
    found: list[str] = _tables()[table][key]
    return tuple(_filled(text) for text in found)


@functools.cache
def keys(table: str) -> tuple[str, ...]:
    """Return the keys of a table of `words.toml`, in its order."""
    return tuple(_tables()[table])


@functools.cache
def any_of(table: str, key: str) -> Any:
    """Return the expressions of a key as one of RE2's, which has `search`."""
    import re2

    options = re2.Options()
    options.never_capture = True
    options.max_mem = 128 << 20
    return re2.compile("|".join(f"(?:{text})" for text in words(table, key)), options)


def _filled(text: str) -> str:
    if "<" in text:
        for stand_in, value in _STAND_INS.items():
            text = text.replace(stand_in, value)
    return text
