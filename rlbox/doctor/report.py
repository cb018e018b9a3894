"""From findings to a report: what means the same is one finding, and what follows from another is left out.

For people each finding says what, with which number, where, and what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from rlbox.amounts import duration_text
from rlbox.findings import LEVELS, Finding
from rlbox.i18n import _, join, ngettext


@dataclass(frozen=True, kw_only=True)
class DoctorReport:
    """What was found. `follows` are the findings that another one explains; `unfinished` says why for each probe."""

    findings: tuple[Finding, ...] = ()
    follows: tuple[Finding, ...] = ()
    checks: int = 0
    unfinished: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def has_errors(self) -> bool:
        return any(finding.level == "error" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": round(self.seconds, 2)}


def parse_report(data: dict[str, Any]) -> DoctorReport:
    from pydantic import TypeAdapter

    return TypeAdapter(DoctorReport).validate_python(data)


class ResolvedFindings(NamedTuple):
    """Findings that stand for themselves, errors first, and those that follow from one of them."""

    findings: tuple[Finding, ...]
    follows: tuple[Finding, ...]


def merge_and_split_off_explained(
    own: Iterable[Finding], failed_fix_checks: Iterable[Finding] = ()
) -> ResolvedFindings:
    """Join findings that mean the same, and part those that another one explains.

    A failed fix check that means the same as an own finding gives it its remedy, where that has none.
    """
    rows = list(_drop_repeated(own))
    for fix in failed_fix_checks:
        meanings = {fix.id, *fix.covers}
        same = next((number for number, row in enumerate(rows) if not meanings.isdisjoint((row.id, *row.covers))), None)
        if same is None:
            rows.append(fix)
        else:
            level = min(rows[same].level, fix.level, key=LEVELS.index)
            rows[same] = replace(rows[same], remedy=rows[same].remedy or fix.remedy, level=level)
    follows = tuple(
        row for row in rows if is_explained_by_breaks(row.id, [other for other in rows if other is not row])
    )
    kept = [row for row in rows if row not in follows]
    return ResolvedFindings(tuple(sorted(kept, key=lambda row: LEVELS.index(row.level))), follows)


def is_explained_by_breaks(finding_id: str, causes: Iterable[Finding]) -> bool:
    return any(fnmatchcase(finding_id, pattern) for cause in causes for pattern in cause.breaks)


def merge_reports(reports: Sequence[DoctorReport], seconds: float) -> DoctorReport:
    findings, follows = merge_and_split_off_explained(finding for report in reports for finding in report.findings)
    return DoctorReport(
        findings=_drop_repeated(findings),
        follows=(*follows, *(finding for report in reports for finding in report.follows)),
        checks=sum(report.checks for report in reports),
        unfinished=tuple(name for report in reports for name in report.unfinished),
        seconds=seconds,
    )


def _drop_repeated(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple({(finding.id, finding.seen): finding for finding in findings}.values())


def format_report(report: DoctorReport, *, with_notes_and_follows: bool = False) -> str:
    """Return the findings as text, nothing when there is none; `with_notes_and_follows`: all of them."""
    lines = []
    for finding in report.findings:
        if finding.level != "note" or with_notes_and_follows:
            lines.append(_("{level}: {finding}").format(level=_LEVEL_NAMES[finding.level], finding=_head(finding)))
            lines += [_("  where: {where}").format(where=finding.where)] if finding.where else []
            lines += [_("  next:  {step}").format(step=_(finding.remedy))] if finding.remedy else []
    for finding in report.follows if with_notes_and_follows else ():
        lines.append(_("follows: {finding}").format(finding=_head(finding)))
    return join("\n", lines)


_LEVEL_NAMES = {"error": _("error"), "warning": _("warning"), "note": _("note")}


def _head(finding: Finding) -> str:
    texts = (finding.id, _(finding.title), _(finding.seen)) if finding.seen else (finding.id, _(finding.title))
    return join(": ", texts)


def format_summary(report: DoctorReport) -> str:
    """Return the line that stands on stderr: `doctor: 31 checks, nothing found, 4.2 s`."""
    count: Counter[str] = Counter(finding.level for finding in report.findings)
    texts = (
        ngettext("{count} error", "{count} errors", count["error"]).format(count=count["error"]),
        ngettext("{count} warning", "{count} warnings", count["warning"]).format(count=count["warning"]),
        ngettext("{count} note", "{count} notes", count["note"]).format(count=count["note"]),
    )
    levels = [text for text, level in zip(texts, LEVELS, strict=True) if count[level]]
    late = _(", not finished: {probes}").format(probes=join("; ", report.unfinished)) if report.unfinished else ""
    return _("doctor: {count} checks, {found}{late}, {duration}").format(
        count=report.checks,
        found=join(", ", levels or [_("nothing found")]),
        late=late,
        duration=duration_text(report.seconds),
    )
