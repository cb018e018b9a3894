"""What NCCL's RAS service says of the communicators of a job, read from its text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

ANY = "collective"
"""The operation of a count that NCCL before 2.28 does not tell apart by kind."""

_COMMUNICATOR = re.compile(r"#(\d+-\d+) \(([0-9a-f]+)\) ")
_KIND = re.compile(r"Communicator ranks have different (\w+) operation counts")
_ONE = re.compile(
    r"Rank (\d{1,9}) has (?:launched up to operation (\d{1,18})|not launched any operations)"
    r" -- GPU \S+ managed by process (\d{1,9})"
)
_MANY = re.compile(r"\d{1,9} ranks have (?:launched up to operation (\d{1,18})|not launched any operations)")
_LISTED = re.compile(r"Rank (\d{1,9}) -- GPU \S+ managed by process (\d{1,9})")
_HEADING = re.compile(r"(?:Communicator ranks have different|Missing communicator data) ")
_MISSING = re.compile(r"Missing communicator data from \d+ rank")


@dataclass(frozen=True, kw_only=True)
class Communicator:
    """One communicator that is not well.

    `counts`: for each operation (`AllReduce`) up to which call each rank has launched it, of ranks that are named;
    `most`: the highest count of each operation, ranks that are not named have it. `pids`: process of a rank, as the
    process itself knows its id. `missing`: ranks that do not answer.
    """

    name: str
    counts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)
    pids: Mapping[int, int] = field(default_factory=dict)
    missing: tuple[int, ...] = ()

    @property
    def behind(self) -> Mapping[int, tuple[str, int]]:
        """The ranks that have not launched what others have: an operation, and the call that others wait in."""
        found: dict[int, tuple[str, int]] = {}
        for operation, ranks in self.counts.items():
            most = self.most[operation]
            found.update({rank: (operation, most) for rank, count in ranks.items() if count < most})
        return found

    @property
    def ahead(self) -> Mapping[int, tuple[str, int]]:
        """The ranks that are named with an operation that others have not launched: they wait in it."""
        return {
            rank: (operation, self.most[operation])
            for operation, ranks in self.counts.items()
            for rank, count in ranks.items()
            if count == self.most[operation]
        }


def read_communicators(text: str) -> tuple[Communicator, ...]:
    """Return the communicators that the answer to `VERBOSE STATUS` calls incomplete or mismatched.

    Source: NCCL 2.28.9, src/ras/client_support.cc. Its JSON lacks a comma where a rank is missing.
    """
    found: dict[str, Communicator] = {}
    for name, lines in _parts(text):
        part = _read(name, lines)
        before = found.get(name, Communicator(name=name))
        found[name] = Communicator(
            name=name,
            counts={**before.counts, **part.counts},
            most={**before.most, **part.most},
            pids={**before.pids, **part.pids},
            missing=tuple(sorted({*before.missing, *part.missing})),
        )
    return tuple(found.values())


def _parts(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the lines that belong to each heading `#0-0 (HASH) MISMATCH`."""
    name, lines = "", list[str]()
    for line in text.splitlines():
        if begun := _COMMUNICATOR.match(line):
            if name:
                yield name, lines
            name, lines = begun[2], []
        elif line.strip() and not line.startswith(" "):
            if name:
                yield name, lines
            name = ""
        else:
            lines.append(line.strip())
    if name:
        yield name, lines


def _read(name: str, lines: list[str]) -> Communicator:
    counts: dict[str, dict[int, int]] = {}
    pids: dict[int, int] = {}
    missing: list[int] = []
    most: dict[str, int] = {}
    operation, group, silent = "", -1, False
    for line in lines:
        if kind := _KIND.match(line):
            operation, silent = kind[1] if kind[1] != "collective" else ANY, False
            counts[operation], most[operation] = {}, 0
        elif _HEADING.match(line):
            operation, silent = "", bool(_MISSING.match(line))
        elif operation and (many := _MANY.match(line)):
            group = int(many[1] or 0)
            most[operation] = max(most[operation], group)
        elif operation and (one := _ONE.match(line)):
            rank, group = int(one[1]), int(one[2] or 0)
            pids[rank] = int(one[3])
            counts[operation][rank] = group
            most[operation] = max(most[operation], group)
        elif listed := _LISTED.match(line):
            pids[int(listed[1])] = int(listed[2])
            if operation:
                counts[operation][int(listed[1])] = group
            elif silent:
                missing.append(int(listed[1]))
    return Communicator(name=name, counts=counts, most=most, pids=pids, missing=tuple(missing))
