"""Diagnose logs: read them, judge what they say, and say what broke first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlbox.diagnose.catalogue import SignatureSet
from rlbox.diagnose.judge import rule
from rlbox.diagnose.log_reader import LogReader
from rlbox.diagnose.read.reader import EventReader, Read
from rlbox.diagnose.sources import Source, find_sources, read_blocks
from rlbox.diagnose.verdict import Diagnosis, LogFacts, diagnosis_of


def diagnose(paths: Sequence[Path | str], catalogue: SignatureSet) -> Diagnosis:
    """Return what logs say: files, folders or archives, all of one job.

    Raises
    ------
    SpecError
        There is no log of such a name.
    NodeError
        One cannot be opened.
    """
    return diagnose_sources(find_sources([str(path) for path in paths]), catalogue)


def diagnose_sources(sources: Sequence[Source], catalogue: SignatureSet) -> Diagnosis:
    """Return what logs say."""
    reads: list[Read] = []
    facts: list[LogFacts] = []
    for place, source in enumerate(sources):
        reader = LogReader(EventReader(catalogue, place, several=len(sources) > 1))
        for block in read_blocks(source):
            reader.take(block)
        reads.append(reader.close())
        facts.append(LogFacts(name=source.name, lines=reader.lines, bytes=reader.offset))
    return verdict_of(reads, facts, catalogue)


def verdict_of(reads: Sequence[Read], facts: Sequence[LogFacts], catalogue: SignatureSet) -> Diagnosis:
    """Return the diagnosis of logs that were read."""
    return diagnosis_of(rule(reads, catalogue, [one.name for one in facts]), reads, facts, len(catalogue.signatures))
