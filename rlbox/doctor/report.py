"""From findings to a report: what means the same is one finding, and what follows from another is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from rlbox.findings import LEVELS, Finding, load_finding


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found. `follows` are the findings that another one explains; `unfinished` says why for each probe."""

    findings: tuple[Finding, ...] = ()
    follows: tuple[Finding, ...] = ()
    checks: int = 0
    unfinished: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether there is an error among the findings."""
        return any(finding.level == "error" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON types; `load_report` is the way back."""
        return {
            "findings": [finding.as_json() for finding in self.findings],
            "follows": [finding.as_json() for finding in self.follows],
            "checks": self.checks,
            "unfinished": list(self.unfinished),
            "seconds": round(self.seconds, 2),
        }


def load_report(data: dict[str, Any]) -> Report:
    """Return the report that `Report.as_json` wrote."""
    return Report(
        findings=tuple(map(load_finding, data["findings"])),
        follows=tuple(map(load_finding, data.get("follows", ()))),
        checks=int(data["checks"]),
        unfinished=tuple(map(str, data.get("unfinished", ()))),
        seconds=float(data["seconds"]),
    )


def settle(own: Iterable[Finding], fixes: Iterable[Finding] = ()) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return the findings that stand for themselves, errors first, and those that follow from one of them.

    Parameters
    ----------
    own
        What doctor's own probes found.
    fixes
        Failed checks of fixes: one that means the same as an own finding is no second one; it gives its remedy to a
        finding that has none.
    """
    rows = list(_once(own))
    for fix in fixes:
        same = next((number for number, row in enumerate(rows) if _same(row, fix)), None)
        if same is None:
            rows.append(fix)
        else:
            level = min(rows[same].level, fix.level, key=LEVELS.index)
            rows[same] = replace(rows[same], remedy=rows[same].remedy or fix.remedy, level=level)
    follows = tuple(row for row in rows if is_broken(row.id, [other for other in rows if other is not row]))
    kept = [row for row in rows if row not in follows]
    return tuple(sorted(kept, key=lambda row: LEVELS.index(row.level))), follows


def is_broken(name: str, causes: Iterable[Finding]) -> bool:
    """Return whether one of `causes` explains a finding of that id."""
    return any(fnmatchcase(name, pattern) for cause in causes for pattern in cause.breaks)


def merge(reports: Sequence[Report], seconds: float) -> Report:
    """Return one report of several places; the same finding in two places is one."""
    findings, follows = settle(finding for report in reports for finding in report.findings)
    return Report(
        findings=_once(findings),
        follows=(*follows, *(finding for report in reports for finding in report.follows)),
        checks=sum(report.checks for report in reports),
        unfinished=tuple(name for report in reports for name in report.unfinished),
        seconds=seconds,
    )


def _once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple({(finding.id, finding.seen): finding for finding in findings}.values())


def _same(row: Finding, fix: Finding) -> bool:
    return not {row.id, *row.covers}.isdisjoint({fix.id, *fix.covers})
