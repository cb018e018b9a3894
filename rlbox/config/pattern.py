"""Regular expressions as users write them: RE2, which reads any text in linear time, whatever the expression.

What Python's `re` knows and RE2 does not is refused here. Letter case and dots are those of
Unicode, as in Python; `\\d`, `\\w`, `\\s` and `\\b` know ASCII only: write `\\p{Nd}`, `[\\pL\\pN_]`, `[\\s\\p{Z}]` for
more.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlbox.i18n import _

if TYPE_CHECKING:
    import re2

_RE2_MEMORY_BYTES = 64 << 20
"""Bytes that RE2 may use for one expression: with its own 8 MiB, fifty rules in one fall back to its slow machine."""

_ANY = ("", "x", "0 .", "\u5361!")  # an expression that fits all of these asks nothing of a line

# What to write instead, by the beginning of RE2's own word. Source: github.com/google/re2, `doc/syntax.txt`.
_HINTS = {
    "invalid repetition size": _(" (at most 1000 times)"),
    "invalid perl operator": _(
        "; RE2 has no look-ahead or look-behind, back reference, condition, atomic group or comment"
    ),
    "invalid escape sequence": _("; RE2 has no back references; write $ for \\Z, \\x{HEX} for \\u"),
    "bad repetition operator": _("; RE2 has no possessive repetition"),
}
_LITERAL_HINT = _("; write \\ before a literal character: \\( \\[ \\* \\+ \\?")
_TOKEN = re.compile(r"\\[xpP]\{\^?\w*\}|\\.|\(\?P?<\w+>|\(\?P=|\(\?<[=!]|\(\?.|\[\^?\]?|[*+?}]\+|.", re.DOTALL)
_CLASS = re.compile(r"\[:\^?\w+:\]|\\.|[^\]]", re.DOTALL)


def tokenize_pattern(pattern: str) -> Iterator[str]:
    """Yield the parts of an expression; a class in brackets is one part."""
    at = 0
    while found := _TOKEN.match(pattern, at):
        end = found.end()
        if found.group()[0] == "[":
            while inside := _CLASS.match(pattern, end):
                end = inside.end()
            end += 1
        yield pattern[at:end]
        at = end


def validate_selective_re2_pattern(pattern: str) -> str:
    """Return `pattern`, an expression that RE2 takes and that asks something of a line.

    Raises ValueError: what is wrong, where in the expression, and what to write instead.
    """
    if not pattern:
        raise ValueError(_("is empty, which fits every line; write the text that the line must hold"))
    if any("\n" in part or part in (r"\n", r"\r") for part in tokenize_pattern(pattern) if part[0] != "["):
        raise ValueError(_("holds a line break, and a line has none; write two rules, or `after`"))
    compiled = compile_re2(pattern)
    if all(compiled.search(probe) for probe in _ANY):
        raise ValueError(
            _("{text!r} matches every line, even an empty one; write the required text of the line").format(
                text=pattern
            )
        )
    return pattern


@functools.lru_cache(maxsize=1024)
def compile_re2(pattern: str) -> re2._Regexp[str]:
    """Return `pattern` compiled; it never matches a line feed, so that many lines can be searched at once.

    Raises ValueError: RE2 does not take it.
    """
    import re2  # 20 ms, which no command without patterns pays

    try:
        return re2.compile(pattern, create_re2_options())
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else str(error)
        hint = next((hint for beginning, hint in _HINTS.items() if reason.startswith(beginning)), _LITERAL_HINT)
        raise ValueError(
            _("{text!r} is not a regular expression of RE2: {told}{hint}").format(text=pattern, told=reason, hint=hint)
        ) from error


def matches_unless_excluded(pattern: str, excluded_pattern: str, line: str) -> bool:
    """Return whether a line holds what `pattern` asks for, and nothing that `excluded_pattern` (empty: none) does."""
    bare = line.encode("utf-8", "replace").decode()
    return compile_re2(pattern).search(bare) is not None and not (
        excluded_pattern and compile_re2(excluded_pattern).search(bare)
    )


def create_re2_options(*, capture: bool = True) -> re2.Options:
    """Return how all expressions of users are compiled; without `capture` no groups are told, which is faster."""
    import re2

    options = re2.Options()
    options.never_capture = not capture
    options.never_nl = True
    options.log_errors = False
    options.max_mem = _RE2_MEMORY_BYTES
    return options
