"""Classify lines of logs by the patterns of `patterns.toml`: failures, signs of progress, kinds of programs."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlbox.diagnose.lines import LEVEL_ERROR, LogLine
from rlbox.diagnose.tracebacks import EXCEPTION_NAME
from rlbox.foreign import decode_toml

_FILE = Path(__file__).with_name("patterns.toml")
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
_STAND_INS = {"<NAME>": EXCEPTION_NAME, "<SIGNAL>": _SIGNAL, "<CANNOT>": _CANNOT, "<ERRNO>": _ERRNO}


@functools.cache
def _tables() -> dict[str, Any]:
    return decode_toml(_FILE.read_text(encoding="utf-8"))


@functools.cache
def load_patterns(table: str, key: str) -> tuple[str, ...]:
    """Return the patterns or texts of a key of `patterns.toml`."""
    found: list[str] = _tables()[table][key]
    return tuple(_filled(text) for text in found)


@functools.cache
def _list_pattern_keys(table: str) -> tuple[str, ...]:
    return tuple(_tables()[table])


@functools.cache
def compile_toml_pattern_union(table: str, key: str) -> Any:
    """Return the patterns of a key as one RE2 pattern."""
    import re2

    options = re2.Options()
    options.never_capture = True
    options.max_mem = 128 << 20
    return re2.compile("|".join(f"(?:{text})" for text in load_patterns(table, key)), options)


def _filled(text: str) -> str:
    if "<" in text:
        for stand_in, value in _STAND_INS.items():
            text = text.replace(stand_in, value)
    return text


CausalRole = Literal["root", "relayed", "victim", "death", "noise"]


def classify_causal_role(text: str, exception_name: str = "") -> Literal["root", "relayed", "victim", "death", "noise"]:
    """Classify an error by its text; `exception_name` is its exception's name where it has one."""
    if is_never_fatal(text) or (not exception_name and compile_toml_pattern_union("class", "noise").search(text)):
        return "noise"
    if compile_toml_pattern_union("class", "relayed").search(text):
        return "relayed"
    if compile_toml_pattern_union("class", "death").search(text):
        return "death"
    return "victim" if compile_toml_pattern_union("class", "victim").search(text) else "root"


def is_never_fatal(text: str) -> bool:
    return bool(compile_toml_pattern_union("class", "noise_always").search(text))


CERTAIN_FAILURE, STATED_FAILURE, POSSIBLE_FAILURE = 3, 2, 1
Certainty0To3 = int


def rate_failure_certainty(line: LogLine) -> Certainty0To3:
    """Return CERTAIN, STATED, POSSIBLE, or 0 for a line that states no failure."""
    body = line.body.strip()
    if not body:
        return 0
    if compile_toml_pattern_union("form", "programs").search(body):
        return CERTAIN_FAILURE
    if line.level >= LEVEL_ERROR or compile_toml_pattern_union("form", "named").search(body):
        return STATED_FAILURE
    return POSSIBLE_FAILURE if compile_toml_pattern_union("form", "perhaps").search(body) else 0


def says_work_continues(body: str) -> bool:
    return bool(compile_toml_pattern_union("recurring", "went_on").search(body))


ProgressSign = Literal["step", "served", "bar", "ready", "ray", "quote", "saved", "done", "start", "stop"]


@dataclass(frozen=True, slots=True)
class ProgressMark:
    """A line with a sign of progress: its beginning, its time, and who wrote it (`rank` -1: unknown)."""

    line_number: int
    sign: Literal["step", "served", "bar", "ready", "ray", "quote", "saved", "done", "start", "stop"]
    text: str
    clock: str = ""
    writer: str = ""
    rank: int = -1
    host: str = ""


def find_progress_sign(text: str) -> ProgressSign | None:
    found = _sign_pattern().search(text[:600])
    return found.lastgroup if found else None  # type: ignore[return-value]


@functools.cache
def _sign_pattern() -> re.Pattern[str]:
    return re.compile(
        "|".join(f"(?P<{sign}>{'|'.join(load_patterns('sign', sign))})" for sign in _list_pattern_keys("sign"))
    )


@functools.cache
def compile_progress_prefilter() -> Any:
    """Return all signs as one RE2 pattern over a block of bytes."""
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    text = "|".join(
        _behind_prefixes(part) for sign in _list_pattern_keys("sign") for part in load_patterns("sign", sign)
    )
    return re2.compile(f"(?m)(?:{text})".encode(), options)


def _behind_prefixes(text: str) -> str:
    """Return a pattern that also matches behind a prefix, and in front of terminal codes."""
    if text.startswith("^"):
        text = rf"(?:^|[ \]):|m]){text[1:]}"
    return rf"{text[:-1]}(?:\x1b\[[\d;]*m)*\r?$" if text.endswith("$") else text


HEAD_BYTES = 1 << 18
"""Bytes of a log that are looked at."""


def find_program_kinds(log_head: bytes) -> frozenset[Literal["building", "pip", "serving", "training"]]:
    """Return which of them a log is about."""
    kinds = (kind for kind in _list_pattern_keys("spoken") if _kind_pattern(kind).search(log_head))
    return frozenset(kinds)  # type: ignore[arg-type]


def format_text_for_near_regex(program_kinds: frozenset[str]) -> str:
    """Return the text that signatures' `near` is matched with; training counts more than serving."""
    told = program_kinds - {"serving"} if "training" in program_kinds else program_kinds
    return f"spoken {' '.join(sorted(told))}"


@functools.cache
def _kind_pattern(kind: str) -> re.Pattern[bytes]:
    return re.compile("|".join(load_patterns("spoken", kind)).encode(), re.MULTILINE)
