"""Findings for people: what, with which number, where, and what to do."""

from __future__ import annotations

from rlbox.amounts import duration_text
from rlbox.doctor.report import Report
from rlbox.findings import Finding


def report_text(report: Report, *, verbose: bool = False) -> str:
    """Return the findings as text, nothing when there is none; notes and what follows only when `verbose`."""
    shown = [finding for finding in report.findings if verbose or finding.level != "note"]
    blocks = [_block(finding) for finding in shown]
    if verbose:
        blocks += [f"follows: {_head(finding)}" for finding in report.follows]
    return "\n".join(blocks)


def summary_line(report: Report) -> str:
    """Return the line that stands on stderr: `doctor: 31 checks, nothing found, 4.2 s`."""
    counts = {level: sum(row.level == level for row in report.findings) for level in ("error", "warning", "note")}
    said = ", ".join(f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts.items() if count)
    late = f", not finished: {'; '.join(report.unfinished)}" if report.unfinished else ""
    return f"doctor: {report.checks} checks, {said or 'nothing found'}{late}, {duration_text(report.seconds)}"


def _block(finding: Finding) -> str:
    lines = [f"{finding.level}: {_head(finding)}"]
    lines += [f"  where: {finding.where}"] if finding.where else []
    lines += [f"  next:  {finding.remedy}"] if finding.remedy else []
    lines += ["         or: rlbox doctor --fix"] if finding.fixable else []
    return "\n".join(lines)


def _head(finding: Finding) -> str:
    return f"{finding.id}: {finding.title}" + (f": {finding.seen}" if finding.seen else "")
