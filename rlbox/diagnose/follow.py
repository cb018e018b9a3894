"""Diagnose logs while they grow: each is read on from where it ended, whatever becomes of its file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from rlbox.diagnose.catalogue import SignatureSet
from rlbox.diagnose.judge import RootJudge
from rlbox.diagnose.log_reader import LogReader
from rlbox.diagnose.read.reader import EventReader
from rlbox.diagnose.sources import BLOCK, Source
from rlbox.diagnose.verdict import Diagnosis, LogFacts, diagnosis_of
from rlbox.system.safe_files import open_regular_fd

_MOST_BLOCKS = 256
"""Blocks that are read of one log before the next log has its turn."""


class _Growing:
    """One log that grows: one that was cut short or taken away begins anew, with the file that has its name now."""

    def __init__(self, source: Source, place: int, catalogue: SignatureSet) -> None:
        self.source, self.place = source, place
        self._catalogue = catalogue
        self._begin()

    def _begin(self) -> None:
        events = EventReader(self._catalogue, self.place, several=True)
        self.reader, self._file = LogReader(events), (0, 0)

    def read(self) -> int:
        """Read what is new, and return how many bytes that were; 0 of a log that is not there."""
        count = 0
        with (
            contextlib.suppress(OSError),
            open(open_regular_fd(self.source.path, links=True), "rb", buffering=0) as file,  # type: ignore[arg-type]
        ):
            facts = os.fstat(file.fileno())
            if (facts.st_dev, facts.st_ino) != self._file or facts.st_size < self.reader.offset:
                self._begin()
                self._file = facts.st_dev, facts.st_ino
            file.seek(self.reader.offset)
            for _ in range(_MOST_BLOCKS):
                block = file.read(BLOCK)
                if not block:
                    break
                self.reader.take(block)
                count += len(block)
        return count


class GrowingLogs:
    """Logs of one job that grow; `diagnosis` is what they say so far."""

    def __init__(self, sources: Sequence[Source], catalogue: SignatureSet) -> None:
        self._catalogue = catalogue
        self._logs = [_Growing(source, place, catalogue) for place, source in enumerate(sources)]
        self._judge = RootJudge(catalogue)
        self._known: tuple[tuple[object, ...], Diagnosis] | None = None

    def read(self) -> int:
        """Read what is new, and return how many bytes that were."""
        return sum(log.read() for log in self._logs)

    @property
    def diagnosis(self) -> Diagnosis:
        """What the lines say that have ended; the same object as long as nothing came that may be judged otherwise."""
        state = tuple((id(log.reader), *log.reader.events.state) for log in self._logs)
        if self._known is None or self._known[0] != state:
            reads = [log.reader.events.snapshot() for log in self._logs]
            facts = [
                LogFacts(name=log.source.name, lines=log.reader.lines, bytes=log.reader.offset) for log in self._logs
            ]
            ruling = self._judge.rule(reads, [one.name for one in facts])
            found = diagnosis_of(ruling, reads, facts, len(self._catalogue.signatures))
            self._known = state, found
        return self._known[1]
