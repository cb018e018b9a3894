"""Cut the logs of a stage into lines, once, while they grow, and hand the lines to all who judge them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlbox.logs.file import LogFile
from rlbox.logs.lines import LineCutter, Texts
from rlbox.logs.pump import LogPump

STAGE_LOG_FILE = "stage.log"


Taker = Callable[[str, int, int, Texts], object]
"""Looks at lines of a log that ended: its name, the number of the first, the byte at which that begins, the lines.

There may be none, but states of a progress bar that were overwritten (`texts.past`).
"""


class LogWatch:
    """Reads the logs of a pump in the order `names`: what a service says comes before what its clients make of it."""

    def __init__(self, pump: LogPump, names: Sequence[str], takers: Sequence[Taker]) -> None:
        self._pump = pump
        self._names = names
        self._takers = takers
        self._readers: dict[str, _Reader] = {}

    @property
    def taken(self) -> dict[str, int]:
        """How many bytes of each log were handed over, lines that have not ended yet included."""
        return {name: log.taken for name, log in self._pump.logs.items()}

    def unfinished(self, name: str) -> str:
        """Return the line of a log that has not ended yet, as it is shown now."""
        return self._readers[name].cutter.unfinished if name in self._readers else ""

    @property
    def waiting(self) -> bool:
        """Whether there is more to hand over at once."""
        return any(log.waiting for log in self._pump.logs.values())

    def read(self) -> bool:
        """Hand over one block of each log; return whether there was anything."""
        grown = [self._read(name) for name in self._names]
        return any(grown)

    def drain(self) -> None:
        """Hand over all that was written before this call."""
        self._pump.catch_up()
        due = {name: log.size for name, log in self._pump.logs.items()}
        for name in self._names:
            while name in due and self._pump.logs[name].taken < due[name] and self._read(name):
                pass

    def end_line(self, name: str) -> None:
        """Hand over the last line of a log that ends without a line feed: whoever wrote it will not end it."""
        if name in self._readers:
            self._hand_over(name, *self._readers[name].end_line())

    def close(self) -> None:
        """Hand over what is left, also last lines without a line feed."""
        while self.read():
            pass
        for name in self._names:
            self.end_line(name)

    def cuts(self) -> list[str]:
        """Return, once each time, the logs that somebody emptied; what was in them was handed over before."""
        return [name for name, reader in self._readers.items() if reader.was_cut()]

    def _read(self, name: str) -> bool:
        log = self._pump.logs.get(name)
        if log is None:
            return False
        reader = self._readers.setdefault(name, _Reader(log))
        size = log.taken
        self._hand_over(name, *reader.read())
        return log.taken != size

    def _hand_over(self, name: str, first: int, offset: int, texts: Texts) -> None:
        if texts or texts.past or texts.hidden:
            for take in self._takers:
                take(name, first, offset, texts)


class _Reader:
    """One log, cut into lines; `_begin` is the byte at which the line that has not ended yet begins."""

    def __init__(self, log: LogFile) -> None:
        self._log = log
        self.cutter = LineCutter()
        self._begin = 0
        self._cuts = 0

    def read(self) -> tuple[int, int, Texts]:
        """Return number, offset and texts of the lines that ended in the next block."""
        cuts, data = self._log.cuts, self._log.read()
        if self._log.cuts != cuts:
            self._begin = 0
        first, offset = self.cutter.number + 1, self._begin
        texts = self.cutter.feed(data)
        if texts:
            self._begin = self._log.taken - len(data) + data.rindex(b"\n") + 1
        return first, offset, texts

    def end_line(self) -> tuple[int, int, Texts]:
        """Return the last line when the log ends without a line feed."""
        first, offset = self.cutter.number + 1, self._begin
        self._begin = self._log.taken
        return first, offset, self.cutter.close()

    def was_cut(self) -> bool:
        """Return whether the log was emptied since this was asked last."""
        cuts, self._cuts = self._cuts, self._log.cuts
        return self._cuts != cuts
