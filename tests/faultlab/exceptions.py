"""The exception lines of a log, with the frame that raised each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

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
    """One exception line: its number and text, the last frame above it with its source, and its chain.

    `frames` are those of the whole chain so far, `(file, function)`.
    """

    number: int
    text: str
    file: str
    function: str
    source: str
    chain: int
    frames: tuple[tuple[str, str], ...]


@dataclass
class _Lane:
    """What is known of the lines of one prefix."""

    open: bool = False
    chained: bool = False
    chain: int = 0
    source: str = ""
    frames: list[tuple[str, str]] = field(default_factory=list)


def bare(line: str) -> str:
    """Return a line without terminal codes and outer blanks."""
    return CODES.sub("", line).strip()


def raised_lines(log: str) -> Iterator[Raised]:
    """Yield the exception lines of tracebacks, in order; interleaved tracebacks are told apart by their prefixes."""
    lanes: dict[str, _Lane] = {}
    count = 0
    for number, line in enumerate(log.split("\n"), 1):
        text = CODES.sub("", line).rstrip()
        prefix = _PREFIX.match(text)
        mark, rest = (prefix.group(), text[prefix.end() :]) if prefix else ("", text)
        lane = lanes.setdefault(re.sub(r"[\d:.]+ ", "", mark), _Lane())
        if rest.lstrip().startswith(_HEAD):
            if not lane.chained:
                count += 1
                lane.chain, lane.frames = count, []
            lane.chained, lane.open, lane.source = False, True, ""
        elif frame := _FRAME.match(rest):
            if lane.open:
                lane.frames.append((frame.group(1), frame.group(3)))
                lane.source = ""
        elif rest.strip().startswith(_CHAINED):
            lane.chained = bool(lane.frames)
        elif lane.open and lane.frames and rest.startswith("    "):
            lane.source = lane.source or rest.strip()
        elif lane.open and lane.frames and not rest.startswith((" ", "\t")) and (hit := _RAISED.match(rest.strip())):
            lane.open = False
            file, function = lane.frames[-1]
            yield Raised(
                number=number, text=hit.group(), file=file, function=function, source=lane.source, chain=lane.chain,
                frames=tuple(lane.frames),
            )  # fmt: skip
