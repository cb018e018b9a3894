"""BuildKit's cache: take out the benchmarks' own records, and nothing of anybody else."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass

ROUNDS = 8
_NUMBER = re.compile(r"^\[\S+ +\d+/\d+\] ")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record; `what` is the step that made it, without its number; `parents` are the records that it stands on."""

    identity: str
    parents: frozenset[str]
    made: str
    what: str


def drop_all(mark: str) -> None:
    """Remove every record whose step names `mark`, with all that stands on it."""
    _drop(lambda known: {record.identity for record in known if mark in record.what})


def drop_superseded(mark: str, step: str = "") -> None:
    """Keep only the latest record of every step that names `mark`, and none of those that name `step` too.

    Without this a rebuild leaves a gigabyte, and ten of them fill a disk.
    """
    _drop(lambda known: _superseded([record for record in known if mark in record.what], step))


def _superseded(own: list[Record], step: str) -> set[str]:
    latest = {record.what: record.identity for record in sorted(own, key=lambda record: record.made)}
    return {
        record.identity for record in own if latest[record.what] != record.identity or (step and step in record.what)
    }


def _records() -> list[Record]:
    """Return every record; none when this client cannot say."""
    done = subprocess.run(["docker", "buildx", "du", "--verbose"], capture_output=True, text=True, check=False)
    found = []
    for block in done.stdout.split("\n\n"):
        rows = re.findall(r"^(ID|Parents?|Created at|Description):[ \t]*(.*)$", block, re.MULTILINE)
        fields: dict[str, str] = dict(rows)
        if "ID" in fields:
            listed = re.findall(r"^ - (\S+)$", block, re.MULTILINE)  # by newer clients; older ones use commas
            parents = frozenset([*listed, *fields.get("Parent", fields.get("Parents", "")).split(",")])
            made, what = fields.get("Created at", ""), _NUMBER.sub("", fields.get("Description", ""))
            found.append(Record(identity=fields["ID"].rstrip("*"), parents=parents, made=made, what=what))
    return found


def _drop(choose: Callable[[Iterable[Record]], set[str]]) -> None:
    """Prune what `choose` names and what stands on it; a record goes only after those that stand on it."""
    for _ in range(ROUNDS):
        known = _records()
        chosen = _with_descendants(choose(known), known)
        if not chosen:
            return
        argv = ["docker", "buildx", "prune", "--force", "--filter", f"id=({'|'.join(sorted(chosen))})"]
        subprocess.run(argv, check=False, capture_output=True)


def _with_descendants(chosen: set[str], known: Iterable[Record]) -> set[str]:
    while more := {record.identity for record in known if record.parents & chosen} - chosen:
        chosen = chosen | more
    return chosen
