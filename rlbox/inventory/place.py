"""Where a line is from: the package, its versions, the file and the function that says it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rlbox.inventory.messages import HOLE, LEAST
from rlbox.inventory.table import WORD, Origin, Table, shipped

_LONGEST = 2000
_LEAST_SHARE = 0.3
"""The part of a line that the written words of a message must make up, or the line says something of its own."""
_NAMED_SHARE = 0.12
"""The same where the exception's name is right, too."""
_OPENING = 20
"""Written letters that are enough where the message begins with them, however long its values are."""
_HEAD = re.compile(
    r"^.{0,200}?(?<![\w.])((?:[A-Za-z_]\w*\.)*)([A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failed|NotFound|Empty|Full))\b:?\s*"
)
_SITE = re.compile(r"(?:site|dist)-packages/((\w+)/(?:.*/)?\w+\.\w+)$")
_PACKAGES = re.compile(r"(?:site|dist)-packages/")
_INTERPRETER = re.compile(r"^<|/lib/python\d[\d.]*/")
_FOLDERS = {
    "flash_attn": "flash-attn", "flashinfer": "flashinfer-python", "hydra": "hydra-core", "megatron": "megatron-core",
    "pydantic_core": "pydantic", "safetensors_rust": "safetensors",
}  # fmt: skip
"""Packages whose folder has another name."""


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
    places: tuple[str, ...] = ()
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
    head = _HEAD.match(text)
    fits = [
        (_rank(known, head, packages or {}), known)
        for known in found.with_anchor(WORD.findall(text))
        if _fits(known, text, head)
    ]
    if not fits:
        return _by_class(text, found)
    best, known = max(fits, key=lambda fit: (fit[0], fit[1].message.where, fit[1].package))
    alike = [other for rank, other in fits if rank[:-1] == best[:-1]]
    return Placement(
        package=known.package,
        versions=_span(known.versions, found.packages[known.package]),
        where=known.message.where,
        name=known.message.name,
        template=known.message.template.replace(HOLE, "…"),
        places=tuple(sorted({other.message.where for other in alike if other.package == known.package})),
        rivals=tuple(sorted({other.package for other in alike} - {known.package})),
    )


def place_raised(
    line: str, frames: Sequence[tuple[str, str]], versions: Mapping[str, str] | None = None, table: Table | None = None
) -> Placement | None:
    """Return where an exception is from whose traceback is there.

    What the inventory has is believed where the traceback went through that package and function. Otherwise compiled
    code, the interpreter or somebody who passes on another's words said it: a package's innermost frame tells where,
    unless code of no package was further in.

    Parameters
    ----------
    frames
        File and function of each, the outermost first.
    versions
        Those of packages, as far as they are known.
    """
    found = table or shipped()
    places = [at for file, function in frames if (at := _of_frame(file, function, found))]
    own = dict.fromkeys((package for package, _ in places), "")
    known = place(line, {**own, **(versions or {})}, found)
    if not places or (known and {_plain(known.package, at) for at in (known.where, *known.places)} & _passed(places)):
        return known
    told = (file for file, _ in reversed(frames) if _PACKAGES.search(file) or not _INTERPRETER.search(file))
    if not _PACKAGES.search(next(told, "")):
        return known
    package, where = places[-1]
    name = line.partition(":")[0].rpartition(".")[2]
    return Placement(package=package, versions="", where=where, name=name, template="")


def _passed(places: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    return {_plain(package, where) for package, where in places}


def _plain(package: str, where: str) -> tuple[str, str]:
    """Return package and function of a place, without the class that the function is of."""
    return package, where.rpartition(": ")[2].rpartition(".")[2]


def _of_frame(file: str, function: str, table: Table) -> tuple[str, str] | None:
    """Return package and place of a frame; None of one that is of no package of the inventory."""
    found = _SITE.search(file)
    package = _FOLDERS.get(found.group(2), found.group(2).replace("_", "-")) if found else ""
    return (package, f"{found.group(1)}: {function}") if found and package in table.packages else None


def _fits(known: Origin, text: str, head: re.Match[str] | None) -> bool:
    template = known.message.template
    named = head is not None and head.group(2) == known.message.name
    if template == f"{known.message.name}:":
        return named
    parts = template.split(HOLE)
    written = sum(map(len, parts))
    if written < LEAST or not all(part in text for part in parts):
        return False
    found = _pattern(template).search(text)
    if found is None:
        return False
    begin = head.end() if head else 0
    if text.startswith("[Errno ", begin):
        share = 1.0  # the system's own sentence, whoever asked
    elif found.start() == begin and written >= _OPENING:
        share = 0.0
    else:
        share = _NAMED_SHARE if named else _LEAST_SHARE
    return written >= share * min(len(text) - begin, 300)


def _by_class(text: str, table: Table) -> Placement | None:
    """A message that is written nowhere, by the module that its exception's full name tells: without a function."""
    found = _HEAD.match(text)
    module, name = (found.group(1), found.group(2)) if found else ("", "")
    folder = module.split(".")[0]
    package = _FOLDERS.get(folder, folder.replace("_", "-"))
    if package not in table.packages:
        return None
    where = f"{module.rstrip('.').replace('.', '/')}: {name}"
    return Placement(package=package, versions="", where=where, name=name, template="")


def _rank(known: Origin, head: re.Match[str] | None, packages: Mapping[str, str]) -> tuple[bool, bool, int, bool, int]:
    """How well a message fits: by package and version, by exception, by its written letters, by its newest version."""
    named = head is not None and head.group(2) == known.message.name
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
