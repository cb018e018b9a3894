"""The result of a diagnosis, and the JSON object of `rlbox diagnose --json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rlbox.diagnose.candidates import Case
from rlbox.diagnose.event_reader import Read
from rlbox.diagnose.location import CodeLocation, Place, find_raising_code, log_to_fetch, place_of
from rlbox.diagnose.root_cause import Link, Ruling, chain_of

Ending = Literal["failed", "survived", "clean", "unseen"]
TEXT_LIMIT = 2000
UNKNOWN = "unknown"
_CHAIN_MOST = 200


@dataclass(frozen=True, kw_only=True)
class LogFacts:
    """One log that was read: its name, lines and bytes, and how far its clock is ahead of the first one's."""

    name: str
    lines: int
    bytes: int = 0
    skew_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The root of a failure, what followed from it, and what was none; see `as_json` for the keys.

    `ended`: the logs say how it ended, well or not.
    """

    root: Case | None
    chain: tuple[Link, ...] = ()
    also: tuple[Case, ...] = ()
    noise: tuple[Case, ...] = ()
    ending: Ending = "unseen"
    ended: bool = False
    files: tuple[LogFacts, ...] = ()
    signatures: int = 0
    fetch: str = ""
    place: Place = field(default_factory=Place)
    placed: CodeLocation | None = None

    @property
    def fatal(self) -> bool:
        """Whether something was not survived."""
        return self.root is not None

    @property
    def cause(self) -> str | None:
        """The id of the cause, `unknown`, or None where nothing was fatal."""
        return (self.root.cause or UNKNOWN) if self.root else None

    @property
    def fix(self) -> str:
        """The id of the fix that tells of it; it may know more than the list of causes."""
        return self.root.match.signature.fix if self.root and self.root.match else ""

    @property
    def title(self) -> str:
        """What the cause is called; empty without one."""
        return self.root.match.signature.title if self.root and self.root.match else ""

    @property
    def remedy(self) -> str | None:
        """The smallest next step; None where none is known."""
        return (self.root.match.signature.remedy or None) if self.root and self.root.match else None

    @property
    def confidence(self) -> float:
        """How sure the answer is, from 0 to 1."""
        if self.root is None:
            return {"clean": 0.95, "survived": 0.85}.get(self.ending, 0.6)
        sure = 0.5 + 0.08 * max(0.0, min(self.root.score, 4.0))
        sure += 0.1 if self.root.match else -0.1
        sure += 0.05 if len(self.chain) > 1 else 0.0
        sure -= 0.0 if self.root.cls == "root" else 0.2
        return round(max(0.05, min(sure, 0.97)), 2)

    def as_json(self) -> dict[str, Any]:
        """Return the object of schema 1: `fatal`, `cause`, `first_fatal`, `chain`, `also`, `benign`, `remedy`, …"""
        root = self.root
        return {
            "schema": 1,
            "fatal": self.fatal,
            "cause": self.cause,
            "fix": self.fix,
            "title": self.title,
            "confidence": self.confidence,
            "ending": self.ending,
            "first_fatal": self._place(root) if root else None,
            "chain": [self._step(link) for link in self.chain],
            "also": [{"cause": case.cause or UNKNOWN, **self._place(case), "why": case.cls} for case in self.also],
            "benign": [self._benign(case, count) for case, count in self._grouped()],
            "remedy": self.remedy,
            "fetch": self.fetch,
            "node": self.place.node,
            "rank": self.place.rank,
            "files": [
                {"file": one.name, "lines": one.lines, "bytes": one.bytes, "skew_s": round(one.skew_s, 3)}
                for one in self.files
            ],
            "placed": asdict(self.placed) if self.placed else None,
            "signatures": self.signatures,
        }

    def _name(self, case: Case | None) -> str:
        return self.files[case.event.file].name if case and self.files else ""

    def _place(self, case: Case) -> dict[str, Any]:
        return {
            "line": case.number,
            "text": shown_text(case),
            "file": self._name(case),
            "lane": case.event.lane,
        }

    def _step(self, link: Link) -> dict[str, Any]:
        case = link.case
        return {
            "class": link.kind,
            **self._place(case),
            "at": case.event.row.clock,
            "time": round(case.time[0], 6) if case.time else None,
            "cause": case.cause or None,
            "why": link.why,
            "of": link.of,
            "count": case.event.count,
        }

    def _benign(self, case: Case, count: int) -> dict[str, Any]:
        known = case.match.signature if case.match and case.match.signature.role == "benign" else None
        return {
            "cause": known.cause if known else "",
            **self._place(case),
            "count": count,
            "why": case.why_not or "level",
        }

    def _grouped(self) -> list[tuple[Case, int]]:
        """Return what was none, alike ones once with their count."""
        counts: Counter[tuple[str, str]] = Counter()
        first: dict[tuple[str, str], Case] = {}
        for case in self.noise:
            key = (case.cause, case.text[:80])
            counts[key] += case.event.count
            first.setdefault(key, case)
        return [(first[key], count) for key, count in counts.most_common(50)]


def shown_text(case: Case) -> str:
    """Return the telling line whole, as it stands in its log, without terminal codes and outer blanks."""
    event = case.event
    whole = case.whole or (event.row.text.strip() if event.row.number == case.number else case.text)
    return whole[:TEXT_LIMIT]


def diagnosis_of(ruling: Ruling, reads: Sequence[Read], files: Sequence[LogFacts], signatures: int) -> Diagnosis:
    """Return the diagnosis that a ruling amounts to."""
    chain, apart, noise = chain_of(ruling.root, ruling.cases, ruling.noise) if ruling.root else ([], [], ruling.noise)
    facts = tuple(
        LogFacts(name=one.name, lines=one.lines, bytes=one.bytes, skew_s=skew)
        for one, skew in zip(files, ruling.skews_s or [0.0] * len(files), strict=True)
    )
    names = [one.name for one in files]
    place = place_of(ruling.root, ruling.cases, reads, names) if ruling.root else Place()
    return Diagnosis(
        root=ruling.root,
        chain=tuple(chain[:_CHAIN_MOST]),
        also=tuple(apart[:_CHAIN_MOST]),
        noise=tuple(noise),
        ending=_ending(ruling, reads),
        ended=ruling.root is not None or _has_ended(reads),
        files=facts,
        signatures=signatures,
        fetch=log_to_fetch(ruling.root, place) if ruling.root else "",
        place=place,
        placed=find_raising_code(ruling.root) if ruling.root else None,
    )


def _ending(ruling: Ruling, reads: Sequence[Read]) -> Ending:
    if ruling.root:
        return "failed"
    if any(case.why_not == "survived" for case in ruling.noise):
        return "survived"
    return "clean" if _has_ended(reads) else "unseen"


def _has_ended(reads: Sequence[Read]) -> bool:
    """Whether the last sign of work in a log is that of an end."""
    return any(read.marks[-1].sign in ("done", "saved", "stop") for read in reads if read.marks)
