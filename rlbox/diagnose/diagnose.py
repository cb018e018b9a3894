"""Diagnose logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlbox.diagnose.diagnosis import Diagnosis, LogStats, build_diagnosis
from rlbox.diagnose.event_reader import EventReader, LogEvents, LogReader
from rlbox.diagnose.root_cause import analyze
from rlbox.diagnose.signatures import SignatureSet
from rlbox.diagnose.sources import DamagedLogError, EmptyLogError, LogSource, find_sources, read_blocks


def diagnose_paths(paths: Sequence[Path | str], catalogue: SignatureSet) -> Diagnosis:
    """Return what logs say: files, folders or archives, all of one job.

    Raises SpecError: There is no log of such a name.
    Raises NodeError: One cannot be opened.
    """
    return diagnose_sources(find_sources([str(path) for path in paths]), catalogue)


def diagnose_sources(sources: Sequence[LogSource], catalogue: SignatureSet) -> Diagnosis:
    reads: list[LogEvents] = []
    facts: list[LogStats] = []
    empty: set[int] = set()
    for place, source in enumerate(sources):
        reader = LogReader(EventReader(catalogue, place, is_one_of_many=len(sources) > 1))
        problem = ""
        try:
            for block in read_blocks(source):
                reader.feed(block)
        except EmptyLogError as error:
            problem = str(error)
            empty.add(place)
        except DamagedLogError as error:
            problem = str(error)
        reads.append(reader.close())
        facts.append(LogStats(name=source.name, lines=reader.lines, bytes=reader.offset, problem=problem))
    if len(empty) < len(facts):
        facts = [replace(fact, problem="") if place in empty else fact for place, fact in enumerate(facts)]
    return diagnose_events(reads, facts, catalogue)


def diagnose_events(logs: Sequence[LogEvents], stats: Sequence[LogStats], catalogue: SignatureSet) -> Diagnosis:
    return build_diagnosis(
        analyze(logs, catalogue, [one.name for one in stats]), logs, stats, len(catalogue.signatures)
    )
