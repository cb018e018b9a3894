"""How findings of a lint are shown, and the table they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rlbox.amounts import counted, padded
from rlbox.lint.drift import DriftRule
from rlbox.lint.read.text import SEVERITIES, Defect


def findings_text(findings: Sequence[Defect]) -> str:
    """Return two lines for each finding: place and defect, and the form that works."""
    lines = []
    for one in findings:
        lines.append(f"{one.file}:{one.line}:{one.column}: {one.severity}: {one.what} [{one.rule}]")
        lines.append(f"  next: {one.next_step}")
    return "\n".join(lines)


def findings_data(findings: Sequence[Defect]) -> list[dict[str, Any]]:
    """Return findings as plain values."""
    rows = []
    for one in findings:
        row = asdict(one)
        row["next"] = row.pop("next_step")
        rows.append({**row, "covers": list(one.covers)})
    return rows


def summary(findings: Sequence[Defect], files: int, notes_shown: bool) -> str:
    """Return one line: how much was read, how much is wrong, and where the rest is."""
    counts = {severity: sum(one.severity == severity for one in findings) for severity in SEVERITIES}
    parts = [counted(count, name, f"{name}s") for name, count in counts.items() if count]
    text = f"{counted(files, 'file', 'files')}: {', '.join(parts) or 'nothing found'}"
    return text + (" (-v shows the notes)" if counts["note"] and not notes_shown else "")


def table_text(rules: Sequence[DriftRule]) -> str:
    """Return the table: rule, severity, versions, what is wrong and what works."""
    wide = max(len(rule.id) for rule in rules)
    lines = []
    for rule in rules:
        versions = f"  ({rule.package}: {_versions(rule)})" if rule.package else ""
        lines.append(f"{padded(rule.id, wide)}  {rule.severity:7}  {rule.what}{versions}")
        lines.append(f"{'':{wide}}           next: {rule.next}  [{rule.dated}]")
    return "\n".join(lines)


def _versions(rule: DriftRule) -> str:
    ranges = {"works with": rule.works, "warns with": rule.warns, "fails with": rule.fails}
    return ", ".join(f"{word} {text}" for word, text in ranges.items() if text)
