"""Progress bars in logs that count something else than steps: weights loaded, graphs captured, prompts answered. Pure.

Known: tqdm's, with numbers (`67/128`) and with bytes (`1.20G/2.70G`), and vLLM's and SGLang's `25% Completed | 1/4`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlbox.logs.codes import clean_text
from rlbox.logs.lines import bare_text
from rlbox.logs.throughput import LINE_LIMIT, counts_steps

_NUMBER = r"(\d{1,15}(?:\.\d{1,6})?)([kMGT]?)i?B?"
# No part of it can be read in two ways, so that a line takes time by its length, whatever it holds.
_BAR = re.compile(
    rf"\b\d{{1,3}}% ?(?:Completed )?\|(?:[^|\[]{{0,200}}\|)? *{_NUMBER}/{_NUMBER} \[[\d:]*(?:<([\d:]{{1,12}}))?"
)
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_CLOCK = re.compile(r"^(?:[\[(]?\d{1,4}[-/:][\d\-/:., TZ]*[\])]? ?|[A-Z]+ |\([^()]{0,80} pid=\d+\) ?|\[[^\]]*\] ?)+")
_LABEL = 60
_LINES = 12
"""A bar with more lines behind it than these is one that nobody goes on with."""


@dataclass(frozen=True, kw_only=True)
class ProgressBar:
    """A bar: `done` of `total`; `left_s` as its program tells it, None where it does not."""

    label: str
    done: float
    total: float
    left_s: float | None = None

    @property
    def share(self) -> float:
        """How much of it is done, 0-1."""
        return min(1.0, self.done / self.total)


def read_bar(line: str) -> ProgressBar | None:
    """Return the bar in a line of a log; None without one, and for one that counts steps."""
    text = bare_text(clean_text(line[:LINE_LIMIT]))
    found = None
    for hit in _BAR.finditer(text):
        found = hit
    if found is None or counts_steps(text):
        return None
    done, total = (float(found[at]) * _UNITS[found[at + 1]] for at in (1, 3))
    label = _CLOCK.sub("", text[: found.start()].strip()).rstrip(": ")[:_LABEL]
    return ProgressBar(label=label, done=done, total=total, left_s=_seconds(found[5])) if 0 < total >= done else None


def last_bar(block: bytes) -> ProgressBar | None:
    """Return the bar that a log's last lines show, unless it is full; each state of a bar that is rewritten counts."""
    lines = block.decode("utf-8", "replace").replace("\r", "\n").rstrip("\n").split("\n")
    for line in reversed(lines[-_LINES:]):
        if "%" in line and (found := read_bar(line)):
            return found if found.done < found.total else None
    return None


def _seconds(clock: str | None) -> float | None:
    """Return the seconds of `MM:SS` or `H:MM:SS`."""
    parts = clock.split(":") if clock else []
    if len(parts) not in (2, 3) or not all(parts):
        return None
    return float(sum(int(part) * 60**at for at, part in enumerate(reversed(parts))))
