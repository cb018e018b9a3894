"""The exception lines of a log, with the frame that raised each: what the inventory's places are held against."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]")
_PREFIX = re.compile(
    r"^(?:\([^()]*pid=\d+[^()]*\)\s?|\[rank\d+\]:\s?|\[\w+\d+\]:\s?|(?:ERROR|CRITICAL) [\d:. -]+\[[\w.]+:\d+\] ?)*"
)
_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$')
_RAISED = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?::\s?(.*))?$")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


@dataclass(frozen=True, kw_only=True)
class Raised:
    """One exception line: its number and text, the last frame above it, and the chain that it belongs to."""

    number: int
    text: str
    file: str
    function: str
    chain: int


def bare(line: str) -> str:
    """Return a line without terminal codes and outer blanks."""
    return CODES.sub("", line).strip()


def raised_lines(log: str) -> Iterator[Raised]:
    """Yield the exception lines of tracebacks, in order; interleaved tracebacks are told apart by their prefixes."""
    open_: dict[str, tuple[str, str]] = {}
    chains: dict[str, int] = {}
    chained: dict[str, bool] = {}
    count = 0
    for number, line in enumerate(log.split("\n"), 1):
        text = CODES.sub("", line).rstrip()
        prefix = _PREFIX.match(text)
        lane, rest = (prefix.group(), text[prefix.end() :]) if prefix else ("", text)
        key = re.sub(r"[\d:.]+ ", "", lane)
        if rest.lstrip().startswith(_HEAD):
            if not chained.pop(key, False):
                count += 1
                chains[key] = count
            open_[key] = ("", "")
        elif frame := _FRAME.match(rest):
            if key in open_:
                open_[key] = (frame.group(1), frame.group(3))
        elif rest.strip().startswith(_CHAINED):
            chained[key] = True
        elif key in open_ and open_[key][0] and not rest.startswith((" ", "\t")) and (hit := _RAISED.match(rest.strip())):
            file, function = open_.pop(key)
            yield Raised(number=number, text=hit.group(), file=file, function=function, chain=chains[key])
