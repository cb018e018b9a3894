"""What broke first in one log of a run, while it grows: the same judge as for a log that lies there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlbox.diagnose.assess import Case
from rlbox.diagnose.catalogue import SignatureSet
from rlbox.diagnose.judge import RootJudge
from rlbox.diagnose.read.reader import EventReader
from rlbox.diagnose.verdict import shown_text
from rlbox.logs.lines import Texts

Grade = Literal["fatal", "noticed", "wrapper"]
"""How much a line tells: what failed; that somebody else is gone or that the end is near; that something failed."""
_GRADES: dict[str, Grade] = {"root": "fatal", "victim": "noticed", "death": "noticed", "relayed": "wrapper"}
Benign = Callable[[int, str], bool]
"""Whether a line, given by number and text, is declared harmless."""
NOTHING = SignatureSet(())


@dataclass(frozen=True, kw_only=True)
class KnownCause:
    """A cause that the catalogue knows: the id of its fix, its title, and the smallest next step."""

    id: str
    title: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class FatalSpot:
    """The first fatal line of a log, and where it is.

    `number` counts from 1. The line numbered `block_number` begins at byte `block_offset` of the log, so that the line
    is found by a seek. `said_at` is the time that the line states itself, as it is written there, `known` what the
    catalogue knows of it.
    """

    number: int
    text: str
    block_number: int
    block_offset: int
    grade: Grade = "fatal"
    lane: str = ""
    said_at: str = ""
    known: KnownCause | None = None


class FirstFatal:
    """Looks for the first fatal line of one log while it grows, in flat memory.

    The same lines give the same answer however they are cut into blocks.
    """

    def __init__(self, benign: Benign | None = None, catalogue: SignatureSet = NOTHING) -> None:
        self._catalogue = catalogue
        self._benign = benign
        self._judge = RootJudge(catalogue)
        self._found: FatalSpot | None = None
        self._seen: tuple[Any, ...] = ()
        self._begin()

    @property
    def spot(self) -> FatalSpot | None:
        """The first fatal line of all that was taken, None when nothing looks fatal."""
        state = self._reader.state
        if state != self._seen:
            root = self._judge.rule([self._reader.snapshot()]).root
            self._found, self._seen = (spot_of(root) if root else None), state
        return self._found

    def take(self, first: int, offset: int, texts: Sequence[str]) -> None:
        """Look at the next lines, the first of which has the number `first` and begins at byte `offset` of the log."""
        self._reader.take(first, offset, texts)

    def forgive(self) -> None:
        """Forget what was met so far: the process has shown that it lives with it."""
        self._begin()

    def _begin(self) -> None:
        self._reader = EventReader(self._catalogue, excused=self._benign)
        self._found, self._seen = None, ()


@functools.cache
def read_ahead() -> None:
    """Have made what the first failure of a process's logs is read with: 50 to 100 ms that its report need not wait."""
    finder, block = FirstFatal(), Texts(b"step:1 - loss:0.5\nValueError: read ahead", 2)
    block.hits = (1,)
    finder.take(1, 0, block)
    _ = finder.spot


def spot_of(case: Case) -> FatalSpot:
    """Return where a failure is, and what is known of it."""
    event = case.event
    signature = case.match.signature if case.match else None
    known = KnownCause(id=signature.fix, title=signature.title, remedy=signature.remedy) if signature else None
    return FatalSpot(
        number=case.number,
        text=shown_text(case),
        block_number=event.offset[0],
        block_offset=event.offset[1],
        grade=_GRADES[case.cls],
        lane=event.lane,
        said_at=event.row.clock or next((one.clock for one in event.raised if one.clock), ""),
        known=known,
    )
