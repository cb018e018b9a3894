"""The result of a diagnosis, and the JSON object of `rlbox diagnose --json`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rlbox.diagnose.api_names import format_missing_name_remedy_or_empty
from rlbox.diagnose.candidates import Candidate
from rlbox.diagnose.event_reader import EventReader, LogEvents, LogReader
from rlbox.diagnose.lines import parse_clock, to_unix_or_midnight_seconds
from rlbox.diagnose.location import (
    NodeAndRankOfFailure,
    PackageCodeLocation,
    describe_log_to_fetch_or_empty,
    find_failed_node_and_rank,
    find_package_code_unless_user_raised,
)
from rlbox.diagnose.root_cause import CausalLink, analyze_logs, build_chain, find_year_or_2000
from rlbox.diagnose.signatures import LogSignature, SignatureSet
from rlbox.diagnose.sources import DamagedLogError, EmptyLogError, LogSource, find_log_sources, read_decompressed_blocks

JobEnding = Literal["failed", "survived", "clean", "stalled", "unseen"]
TEXT_LIMIT = 2000
UNKNOWN = "unknown"
_CHAIN_MOST = 200


@dataclass(frozen=True, kw_only=True)
class LogStats:
    """One log that was read; `problem` says why not all of it was read, or that it is no log."""

    name: str
    lines: int
    bytes: int = 0
    problem: str = ""


STALL_S = 1800
"""A log that goes on for so long after its last step is stalled, unless its steps take a third of that time."""


@dataclass(frozen=True, kw_only=True)
class StallAtEnd:
    """Steps ended long before the log did: the last line of progress with its clock, and how long the log went on."""

    log_index: int
    line_number: int
    text: str
    clock: str
    stalled_s: float


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The root of a failure, what followed from it, and what was none; see `as_json` for the keys."""

    root: Candidate | None
    chain: tuple[CausalLink, ...] = ()
    independent: tuple[Candidate, ...] = ()
    benign: tuple[Candidate, ...] = ()
    ending: JobEnding = "unseen"
    files: tuple[LogStats, ...] = ()
    signature_count: int = 0
    missing_log_description: str = ""
    location: NodeAndRankOfFailure = field(default_factory=NodeAndRankOfFailure)
    raised_in: PackageCodeLocation | None = None
    stall: StallAtEnd | None = None

    @property
    def damaged_files(self) -> tuple[LogStats, ...]:
        return tuple(one for one in self.files if one.problem)

    @property
    def has_fatal_failure(self) -> bool:
        return self.root is not None

    @property
    def cause_id_unknown_or_none(self) -> str | None:
        """The id of the cause, `unknown`, or None where nothing was fatal."""
        return (self.root.cause_id_or_empty or UNKNOWN) if self.root else None

    @property
    def signature(self) -> LogSignature | None:
        return self.root.match.signature if self.root and self.root.match else None

    @property
    def remedy(self) -> str:
        """What to do, empty when nothing is known: which releases have a missing name, else the signature's remedy."""
        known, root = self.signature, self.root
        if root and root.causal_role == "root" and (known is None or known.has_generic_remedy):
            texts = (root.text, *(line for one in root.event.exceptions_or_line for _number, line in one.tail))
            caller = self.raised_in.package if self.raised_in else ""
            if text := format_missing_name_remedy_or_empty(
                texts, f"{root.event.lines_above}\n{root.event.body}", caller
            ):
                return text
        return known.remedy if known else ""

    @property
    def confidence(self) -> float:
        """From 0 to 1."""
        if self.root is None:
            return {"clean": 0.95, "survived": 0.85}.get(self.ending, 0.6)
        sure = 0.5 + 0.08 * max(0.0, min(self.root.score, 4.0))
        sure += 0.1 if self.root.match else -0.1
        sure += 0.05 if len(self.chain) > 1 else 0.0
        sure -= 0.0 if self.root.causal_role == "root" else 0.2
        return round(max(0.05, min(sure, 0.97)), 2)

    def as_json(self) -> dict[str, Any]:
        """Return the object of schema 1; docs/diagnose.md lists its keys."""
        root, known = self.root, self.signature
        return {
            "schema": 1,
            "fatal": self.has_fatal_failure,
            "cause": self.cause_id_unknown_or_none,
            "fix": known.fix if known else "",
            "title": known.title if known else "",
            "confidence": self.confidence,
            "ending": self.ending,
            "stalled": self._stalled(self.stall) if self.stall else None,
            "first_fatal": self._place(root) if root else None,
            "chain": [self._step(link) for link in self.chain],
            "also": [
                {"cause": one.cause_id_or_empty or UNKNOWN, **self._place(one), "why": one.causal_role}
                for one in self.independent
            ],
            "benign": [self._benign(candidate, count) for candidate, count in self._grouped()],
            "remedy": self.remedy or None,
            "fetch": self.missing_log_description,
            "node": self.location.node,
            "rank": self.location.rank,
            "files": [
                {"file": one.name, "lines": one.lines, "bytes": one.bytes, "problem": one.problem} for one in self.files
            ],
            "placed": asdict(self.raised_in) if self.raised_in else None,
            "signatures": self.signature_count,
        }

    def _place(self, candidate: Candidate) -> dict[str, Any]:
        return {
            "line": candidate.line_number,
            "text": get_clipped_full_line(candidate),
            "file": self.files[candidate.event.log_index].name,
            "lane": candidate.event.writer,
        }

    def _stalled(self, stall: StallAtEnd) -> dict[str, Any]:
        return {
            "line": stall.line_number,
            "text": stall.text[:TEXT_LIMIT],
            "file": self.files[stall.log_index].name,
            "at": stall.clock,
            "seconds": round(stall.stalled_s),
        }

    def _step(self, link: CausalLink) -> dict[str, Any]:
        candidate = link.candidate
        return {
            "class": link.role_in_chain,
            **self._place(candidate),
            "at": candidate.event.log_line.clock,
            "time": round(candidate.time[0], 6) if candidate.time else None,
            "cause": candidate.cause_id_or_empty or None,
            "why": link.reason,
            "of": link.cause_index,
            "count": candidate.event.count,
        }

    def _benign(self, candidate: Candidate, count: int) -> dict[str, Any]:
        known = candidate.match.signature if candidate.match else None
        return {
            "cause": known.cause if known and known.role == "benign" else "",
            "remedy": known.remedy if known and known.role == "benign" and not known.has_generic_remedy else "",
            **self._place(candidate),
            "count": count,
            "why": candidate.benign_reason or "level",
        }

    def _grouped(self) -> list[tuple[Candidate, int]]:
        counts: Counter[tuple[str, str]] = Counter()
        first: dict[tuple[str, str], Candidate] = {}
        for candidate in self.benign:
            key = (candidate.cause_id_or_empty, candidate.text[:80])
            counts[key] += candidate.event.count
            first.setdefault(key, candidate)
        return [(first[key], count) for key, count in counts.most_common(50)]


def get_clipped_full_line(candidate: Candidate) -> str:
    event = candidate.event
    whole = candidate.full_line or (
        event.log_line.text.strip() if event.log_line.number == candidate.line_number else candidate.text
    )
    return whole[:TEXT_LIMIT]


def diagnose_paths(paths: Sequence[Path | str], catalogue: SignatureSet) -> Diagnosis:
    """Return what logs say: files or folders, all of one job.

    Raises SpecError: there is no log of such a name. Raises MachineError: one cannot be opened.
    """
    return diagnose_sources(find_log_sources([str(path) for path in paths]), catalogue)


def diagnose_sources(sources: Sequence[LogSource], catalogue: SignatureSet) -> Diagnosis:
    logs: list[LogEvents] = []
    stats: list[LogStats] = []
    empty: set[int] = set()
    for index, source in enumerate(sources):
        reader = LogReader(EventReader(catalogue, index))
        problem = ""
        try:
            for block in read_decompressed_blocks(source):
                reader.feed(block)
        except DamagedLogError as error:
            problem = str(error)
            empty |= {index} if isinstance(error, EmptyLogError) else set()
        logs.append(reader.close())
        stats.append(LogStats(name=source.name, lines=reader.lines, bytes=reader.offset, problem=problem))
    if len(empty) < len(stats):
        stats = [replace(one, problem="") if index in empty else one for index, one in enumerate(stats)]
    return diagnose_events(logs, stats, catalogue)


def diagnose_events(logs: Sequence[LogEvents], stats: Sequence[LogStats], catalogue: SignatureSet) -> Diagnosis:
    names = [one.name for one in stats]
    analysis = analyze_logs(logs, catalogue, names)
    root = analysis.root
    files = tuple(stats)
    signature_count = len(catalogue.signatures)
    if root is None:
        ending: JobEnding = "clean" if any(log.has_completion_sign_at_end for log in logs) else "unseen"
        if any(one.benign_reason == "survived" for one in analysis.benign):
            ending = "survived"
        stall, benign = _find_stall(logs) if ending != "clean" else None, tuple(analysis.benign)
        ending = "stalled" if stall else ending
        return Diagnosis(
            root=None, benign=benign, ending=ending, files=files, signature_count=signature_count, stall=stall
        )
    chain = build_chain(root, analysis.candidates, analysis.benign)
    location = find_failed_node_and_rank(root, analysis.candidates, logs, names)
    return Diagnosis(
        root=root,
        chain=tuple(chain.links[:_CHAIN_MOST]),
        independent=tuple(chain.independent[:_CHAIN_MOST]),
        benign=tuple(chain.benign),
        ending="failed",
        files=files,
        signature_count=signature_count,
        missing_log_description=describe_log_to_fetch_or_empty(root, location),
        location=location,
        raised_in=find_package_code_unless_user_raised(root),
    )


def _find_stall(logs: Sequence[LogEvents]) -> StallAtEnd | None:
    """Return where the steps of a job ended, if they ended long before the last line of all of its logs.

    Every sign of work counts, served requests too; a log without steps is a server's, which may be idle. Clocks
    without a date are not compared.
    """
    year = find_year_or_2000(logs)

    def read_clock(clock: str) -> float | None:
        moment = parse_clock(clock)
        return to_unix_or_midnight_seconds(moment, year) if moment and moment.has_date else None

    ends = [seconds for log in logs if (seconds := read_clock(log.last_clock)) is not None]
    marks = [
        (seconds, index, mark)
        for index, log in enumerate(logs)
        for mark in log.progress_marks
        if (seconds := read_clock(mark.clock)) is not None
    ]
    if not ends or sum(mark.sign == "step" for _seconds, _index, mark in marks) < 2:
        return None
    times = sorted(seconds for seconds, _index, _mark in marks)
    _last, index, mark = max(marks, key=lambda step: (step[0], step[2].line_number))
    idle_s = max(ends) - times[-1]
    longest_step_s = max(later - earlier for earlier, later in itertools.pairwise(times))
    if idle_s < max(STALL_S, 3 * longest_step_s):
        return None
    return StallAtEnd(log_index=index, line_number=mark.line_number, text=mark.text, clock=mark.clock, stalled_s=idle_s)
