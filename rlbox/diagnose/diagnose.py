"""Diagnose logs, at rest or while they grow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from rlbox.diagnose.diagnosis import Diagnosis, LogStats, build_diagnosis
from rlbox.diagnose.event_reader import EventReader, LogEvents, LogReader
from rlbox.diagnose.root_cause import RootCauseAnalyzer, analyze
from rlbox.diagnose.signatures import SignatureSet
from rlbox.diagnose.sources import BLOCK_BYTES, LogSource, find_sources, read_blocks
from rlbox.system.safe_files import open_regular_fd


def diagnose_paths(paths: Sequence[Path | str], catalogue: SignatureSet) -> Diagnosis:
    """Return what logs say: files, folders or archives, all of one job.

    Raises
    ------
    SpecError
        There is no log of such a name.
    NodeError
        One cannot be opened.
    """
    return diagnose_sources(find_sources([str(path) for path in paths]), catalogue)


def diagnose_sources(sources: Sequence[LogSource], catalogue: SignatureSet) -> Diagnosis:
    reads: list[LogEvents] = []
    facts: list[LogStats] = []
    for place, source in enumerate(sources):
        reader = LogReader(EventReader(catalogue, place, is_one_of_many=len(sources) > 1))
        for block in read_blocks(source):
            reader.feed(block)
        reads.append(reader.close())
        facts.append(LogStats(name=source.name, lines=reader.lines, bytes=reader.offset))
    return diagnose_events(reads, facts, catalogue)


def diagnose_events(logs: Sequence[LogEvents], stats: Sequence[LogStats], catalogue: SignatureSet) -> Diagnosis:
    return build_diagnosis(
        analyze(logs, catalogue, [one.name for one in stats]), logs, stats, len(catalogue.signatures)
    )


_MOST_BLOCKS = 256
"""Blocks that are read of one log before the next log has its turn."""


class _GrowingLog:
    """One log that grows; when it is truncated or replaced, reading starts again."""

    def __init__(self, source: LogSource, place: int, catalogue: SignatureSet) -> None:
        self.source, self.place = source, place
        self._catalogue = catalogue
        self._begin()

    def _begin(self) -> None:
        events = EventReader(self._catalogue, self.place, is_one_of_many=True)
        self.reader, self._file = LogReader(events), (0, 0)

    def read(self) -> int:
        """Read what is new; return how many bytes that were."""
        count = 0
        with (
            contextlib.suppress(OSError),
            open(open_regular_fd(self.source.path_unless_stdin, follow_links=True), "rb", buffering=0) as file,  # type: ignore[arg-type]
        ):
            facts = os.fstat(file.fileno())
            if (facts.st_dev, facts.st_ino) != self._file or facts.st_size < self.reader.offset:
                self._begin()
                self._file = facts.st_dev, facts.st_ino
            file.seek(self.reader.offset)
            for _ in range(_MOST_BLOCKS):
                block = file.read(BLOCK_BYTES)
                if not block:
                    break
                self.reader.feed(block)
                count += len(block)
        return count


class GrowingLogs:
    """Logs of one job that grow."""

    def __init__(self, sources: Sequence[LogSource], catalogue: SignatureSet) -> None:
        self._catalogue = catalogue
        self._logs = [_GrowingLog(source, place, catalogue) for place, source in enumerate(sources)]
        self._judge = RootCauseAnalyzer(catalogue)
        self._known: tuple[tuple[object, ...], Diagnosis] | None = None

    def read_new_bytes(self) -> int:
        """Read what is new; return how many bytes that were."""
        return sum(log.read() for log in self._logs)

    @property
    def diagnosis(self) -> Diagnosis:
        """What the complete lines say; the same object while nothing relevant was added."""
        state = tuple((id(log.reader), *log.reader.events.counts_affecting_analysis) for log in self._logs)
        if self._known is None or self._known[0] != state:
            reads = [log.reader.events.collect_events_so_far() for log in self._logs]
            facts = [
                LogStats(name=log.source.name, lines=log.reader.lines, bytes=log.reader.offset) for log in self._logs
            ]
            analysis = self._judge.analyze(reads, [one.name for one in facts])
            found = build_diagnosis(analysis, reads, facts, len(self._catalogue.signatures))
            self._known = state, found
        return self._known[1]
