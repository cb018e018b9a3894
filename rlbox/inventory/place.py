"""Where a line is from: the package, its versions, the file and the function that says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rlbox.inventory.messages import HOLE, LEAST
from rlbox.inventory.table import WORD, Known, Table, shipped

_LONGEST = 2000
_LEAST_SHARE = 0.3
"""The part of a line that the written words of a message must make up, or the line says something of its own."""
_HEAD = re.compile(r"^.{0,200}?\b(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failed|Warning))\b:?\s*")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a message is from.

    `versions` are those of the inventory that have it, as `0.12.0` or `0.11.0-0.13.0`; `where` is `file.py: function`,
    or a library's file; `name` is the exception or the level; `rivals` are other packages that say the same.
    """

    package: str
    versions: str
    where: str
    name: str
    template: str
    rivals: tuple[str, ...] = ()

    def as_json(self) -> dict[str, str]:
        """What `rlbox diagnose --json` says of it."""
        return {"package": self.package, "versions": self.versions, "where": self.where}


def place(line: str, packages: Mapping[str, str] | None = None, table: Table | None = None) -> Placement | None:
    """Return where a line is from, None when the inventory does not have it.

    Parameters
    ----------
    line
        One line of a log, with or without the exception's name before its message.
    packages
        Versions of packages that the log speaks of, as far as they are known: of two messages that fit alike, theirs is
        taken.
    """
    found = table or shipped()
    text = " ".join(line[:_LONGEST].split())
    fits = [
        (_rank(known, text, packages or {}), known)
        for known in found.with_anchor(WORD.findall(text))
        if _fits(known.message.template, text)
    ]
    if not fits:
        return None
    best, known = max(fits, key=lambda fit: (fit[0], fit[1].message.where, fit[1].package))
    rivals = sorted({other.package for rank, other in fits if rank[1:] == best[1:]} - {known.package})
    return Placement(
        package=known.package,
        versions=_span(known.versions, found.packages[known.package]),
        where=known.message.where,
        name=known.message.name,
        template=known.message.template.replace(HOLE, "…"),
        rivals=tuple(rivals),
    )


def _fits(template: str, text: str) -> bool:
    written = len(template.replace(HOLE, ""))
    message = len(text) - _head_end(text)
    if written < LEAST or (template.count(HOLE) and written < _LEAST_SHARE * min(message, 300)):
        return False
    return _pattern(template).search(text) is not None


def _head_end(text: str) -> int:
    found = _HEAD.match(text)
    return found.end() if found else 0


def _rank(known: Known, text: str, packages: Mapping[str, str]) -> tuple[bool, bool, int, bool, int]:
    """How well a message fits: by package and version, by exception, by its written letters, by its newest version."""
    head = _HEAD.match(text)
    named = bool(head) and head is not None and head.group(1) == known.message.name
    version = packages.get(known.package)
    right = version is not None and (not version or version.partition("+")[0] in known.versions)
    written = len(known.message.template.replace(HOLE, ""))
    return right, named, written, known.message.kind in ("raise", "assert"), len(known.versions)


@lru_cache(4096)
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(".*?".join(re.escape(part) for part in template.split(HOLE)))


def _span(versions: tuple[str, ...], every: list[str]) -> str:
    """Return versions as runs of those that the inventory has: `0.11.0-0.13.0, 0.32.0`."""
    runs: list[list[str]] = []
    for version in every:
        if version in versions:
            if runs and every.index(runs[-1][-1]) == every.index(version) - 1:
                runs[-1].append(version)
            else:
                runs.append([version])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
