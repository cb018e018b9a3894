"""Classify lines of logs by the patterns of `patterns.toml`: failures, signs of progress, kinds of programs."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlbox.foreign import parse_untrusted_toml

_FILE = Path(__file__).with_name("patterns.toml")


@functools.cache
def _tables() -> dict[str, Any]:
    return parse_untrusted_toml(_FILE.read_text(encoding="utf-8"))


@functools.cache
def load_patterns(table: str, key: str) -> tuple[str, ...]:
    return tuple(expand_pattern_placeholders(text) for text in _tables()[table][key])


def expand_pattern_placeholders(pattern: str) -> str:
    for word, value in _tables()["stand_in"].items() if "<" in pattern else ():
        pattern = pattern.replace(f"<{word}>", value)
    return pattern


@functools.cache
def compile_toml_pattern_union(table: str, key: str) -> Any:
    import re2

    options = re2.Options()
    options.never_capture = True
    options.max_mem = 128 << 20
    return re2.compile("|".join(f"(?:{text})" for text in load_patterns(table, key)), options)


CausalRole = Literal["root", "relayed", "victim", "death", "noise"]


def classify_causal_role(message: str, exception_name: str = "") -> CausalRole:
    """Classify an error by its text; `exception_name` is its exception's name where it has one."""
    if is_never_fatal(message) or (not exception_name and compile_toml_pattern_union("class", "noise").search(message)):
        return "noise"
    if compile_toml_pattern_union("class", "relayed").search(message):
        return "relayed"
    if compile_toml_pattern_union("class", "death").search(message):
        return "death"
    return "victim" if compile_toml_pattern_union("class", "victim").search(message) else "root"


def is_never_fatal(message: str) -> bool:
    return bool(compile_toml_pattern_union("class", "noise_always").search(message))


def says_work_continues(line_text: str) -> bool:
    return bool(compile_toml_pattern_union("recurring", "went_on").search(line_text))


ProgressSign = Literal[
    "step", "served", "bar", "ready", "ray", "quote", "saved",
    "validated", "finished", "exiting", "done", "start", "stop",
]  # fmt: skip
ProgramKind = Literal["building", "pip", "serving", "training"]


@dataclass(frozen=True, slots=True)
class ProgressMark:
    """A line with a sign of progress: its beginning, its time, and who wrote it (`rank` -1: unknown)."""

    line_number: int
    sign: ProgressSign
    text: str
    clock: str = ""
    writer: str = ""
    rank: int = -1
    host: str = ""


def find_progress_sign(line_text: str) -> ProgressSign | None:
    found = _sign_pattern().search(line_text[:600])
    return found.lastgroup if found else None  # type: ignore[return-value]


@functools.cache
def _sign_pattern() -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{sign}>{'|'.join(load_patterns('sign', sign))})" for sign in _tables()["sign"]))


@functools.cache
def compile_progress_prefilter() -> Any:
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    text = "|".join(_behind_prefixes(part) for sign in _tables()["sign"] for part in load_patterns("sign", sign))
    return re2.compile(f"(?m)(?:{text})".encode(), options)


def _behind_prefixes(text: str) -> str:
    """Return a pattern that also matches behind a prefix, and in front of terminal codes."""
    if text.startswith("^"):
        text = rf"(?:^|[ \]):|m]){text[1:]}"
    return rf"{text[:-1]}(?:\x1b\[[\d;]*m)*\r?$" if text.endswith("$") else text


PROGRAM_KINDS_HEAD_BYTES = 1 << 18
"""Bytes at the beginning of a log in which kinds of programs are looked for."""


def detect_activity_kinds(log_head: bytes) -> frozenset[ProgramKind]:
    """Return which of `building`, `pip`, `serving` and `training` a log is about."""
    return frozenset(kind for kind in _tables()["spoken"] if _kind_pattern(kind).search(log_head))


def format_text_for_context_pattern(program_kinds: frozenset[ProgramKind]) -> str:
    """Return the text that signatures' `context_pattern` is matched with; training counts more than serving."""
    told = program_kinds - {"serving"} if "training" in program_kinds else program_kinds
    return f"spoken {' '.join(sorted(told))}"


@functools.cache
def _kind_pattern(kind: str) -> re.Pattern[bytes]:
    return re.compile("|".join(load_patterns("spoken", kind)).encode(), re.MULTILINE)
