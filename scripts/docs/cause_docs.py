"""The page of `docs/` that says what is behind each cause: signatures, and the versions and logs that show it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlbox.config.toml_files import load_toml
from rlbox.fixes.fix import Fix
from rlbox.foreign import parse_json
from rlbox.image.templates import create_docs_environment
from scripts.docs.fix_docs import Catalogue

PAGE = "docs/internal/causes.md"
LAB = "tests/faultlab"
SHORT = "tests/cases/diagnose/known.txt"
OUTSIDE = "outside the list"
"""What a recorded failure has as its cause that the list of causes has no id for."""
_VERSION = re.compile(r"\d[\w.+-]*")
_ABSENT = re.compile(r"^\| `([\w-]+)` \| (.+) \|$", re.MULTILINE)
_CASE = re.compile(r"^=== ([\w,-]+) \|", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class RecordedLog:
    """One log of the fault lab: its causes, the versions that printed it (`torch 2.9.0`), its recipe and half."""

    causes: tuple[str, ...]
    versions: str
    recipe: str
    half: str


@dataclass(frozen=True, kw_only=True)
class VersionRow:
    """The logs of one cause that some versions printed: recipes of the open half, and how many logs of the held one."""

    versions: str
    open: tuple[str, ...]
    held: int


@dataclass(frozen=True, kw_only=True)
class CauseRow:
    """A cause: its signatures by fix, its logs by version, its short ones; `absent` says why there is no log."""

    cause: str
    fixes: tuple[tuple[str, int], ...]
    versions: tuple[VersionRow, ...]
    short: int
    absent: str

    @property
    def logs(self) -> int:
        """How many logs were recorded."""
        return sum(len(row.open) + row.held for row in self.versions)

    @property
    def signatures(self) -> int:
        """How many signatures find it."""
        return sum(count for _, count in self.fixes)


def recorded_logs(lab: Path) -> tuple[RecordedLog, ...]:
    """Return what the labels of the fault lab tell; no log is read."""
    found = []
    for path in sorted(lab.glob("*/labels.json")):
        recipes = load_toml(path.with_name("recipes.toml"))
        for name, labels in parse_json(path.read_bytes()).items():
            recipe = recipes[name]
            causes = tuple(one for one in (recipe["cause"], *recipe.get("benign", ())) if one != "none")
            for label in labels.values():
                versions = label.get("versions", {}).items()
                told = ", ".join(f"{name} {text}" for name, text in sorted(versions) if _VERSION.fullmatch(text))
                found.append(RecordedLog(causes=causes, versions=told, recipe=name, half=path.parent.name))
    return tuple(found)


def cause_rows(catalogue: Catalogue, checkout: Path) -> tuple[CauseRow, ...]:
    """Return a row for each cause, in the order of the list; last what was recorded outside of it."""
    logs: dict[str, list[RecordedLog]] = defaultdict(list)
    for log in recorded_logs(checkout / LAB):
        for cause in log.causes:
            logs[cause if cause != "unknown" else OUTSIDE].append(log)
    short = Counter(
        cause for found in _CASE.findall((checkout / SHORT).read_text(encoding="utf-8")) for cause in found.split(",")
    )
    absent = dict(_ABSENT.findall((checkout / LAB / "README.md").read_text(encoding="utf-8")))
    known = [cause for causes in catalogue.causes.family.values() for cause in causes]
    return tuple(
        CauseRow(
            cause=cause,
            fixes=tuple(_signatures(catalogue.fixes, cause)),
            versions=tuple(_versions(logs[cause])),
            short=short[cause],
            absent=absent.get(cause, ""),
        )
        for cause in (*known, OUTSIDE)
    )


def cause_page(rows: Sequence[CauseRow], templates: Sequence[Path]) -> str:
    """Return the page; `templates` are the folders that have `docs/*.j2`."""
    listed = [row for row in rows if row.cause != OUTSIDE]
    counts: Mapping[str, int] = {
        "causes": len(listed),
        "found": sum(row.signatures > 0 for row in listed),
        "recorded": sum(row.logs > 0 for row in listed),
        "twice": sum(len(row.versions) > 1 for row in listed),
        "logs": sum(row.logs for row in rows),
        "nothing": sum(not row.logs and not row.short for row in listed),
    }
    return (
        create_docs_environment(templates)
        .get_template("docs/causes.md.j2")
        .render(rows=rows, counts=counts, lab=LAB, ids={row.cause for row in listed})
    )


def _signatures(fixes: Sequence[Fix], cause: str) -> Iterator[tuple[str, int]]:
    for fix in fixes:
        if fix.signature and (fix.heals or ("",))[0] == cause:
            yield fix.id, len(fix.signature)


def _versions(logs: Sequence[RecordedLog]) -> Iterator[VersionRow]:
    by_version: dict[str, list[RecordedLog]] = defaultdict(list)
    for log in logs:
        by_version[log.versions].append(log)
    for versions, own in sorted(by_version.items()):
        recipes = sorted({log.recipe for log in own if log.half == "open"})
        yield VersionRow(versions=versions, open=tuple(recipes), held=sum(log.half == "held" for log in own))
