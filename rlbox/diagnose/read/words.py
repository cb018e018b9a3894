"""The words of `words.toml`, by which lines of logs are told apart, compiled when they are first asked for."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from rlbox.diagnose.read.trace import NAME
from rlbox.foreign import toml_table

_FILE = Path(__file__).with_name("words.toml")
_SIGNAL = (
    r"(?:Killed|Segmentation fault|Aborted|Bus error|Illegal instruction|Floating point exception"
    r"|Trace/breakpoint trap|Hangup)"
)
_CANNOT = (
    r"(?:[cC]annot|[cC]an't|[cC]an not|[cC]ould not|[cC]ouldn't|[uU]nable to|[fF]ailed to|[iI]nvalid|[uU]nrecognized"
    r"|[uU]nknown|[nN]o such|[pP]ermission denied|[nN]ot found)"
)
_ERRNO = (
    r"(?:Connection (?:refused|timed out|reset by peer)|No route to host|Network is unreachable|Permission denied"
    r"|No such file or directory|No space left on device|Operation not permitted|Input/output error|Stale file handle"
    r"|Is a directory|Not a directory|Read-only file system|Device or resource busy|Exec format error|Text file busy"
    r"|Temporary failure in name resolution|Name or service not known|Could not resolve hostname .{1,80}"
    r"|Too many open files|Cannot allocate memory|Resource temporarily unavailable|Host key verification failed"
    r"|Disk quota exceeded|Transport endpoint is not connected|File exists|Broken pipe|Invalid argument)"
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
def any_of(table: str, key: str) -> re.Pattern[str]:
    """Return the expressions of a key as one."""
    return re.compile("|".join(f"(?:{text})" for text in words(table, key)))


def _filled(text: str) -> str:
    if "<" in text:
        for stand_in, value in _STAND_INS.items():
            text = text.replace(stand_in, value)
    return text
