"""What applying a target changed, or would change, as text and as JSON types."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rlbox.findings import Finding
from rlbox.provision.changes import ApplyPlan, PathChange
from rlbox.provision.wanted import LeftOut, Wanted

_DIFF_BYTES = 1 << 16


def plan_lines(plan: ApplyPlan, *, differences: bool) -> Iterator[str]:
    """Yield a line for each change; with `differences` also what changes in a text file that is there."""
    for step in plan.steps:
        yield step.told()
        if differences:
            yield from (f"    {line}" for line in step_diff(step))


def step_diff(step: PathChange) -> list[str]:
    """Return the lines that change in a file of the user's, as a unified diff; none where nothing is there."""
    if step.laid is None or step.laid.to:
        return []
    try:
        data = Path(step.path).read_bytes()
    except OSError:
        return []
    if len(data) > _DIFF_BYTES or b"\0" in data:
        return []
    old, new = data.decode("utf-8", "replace").splitlines(), step.laid.text.splitlines()
    return list(difflib.unified_diff(old, new, "now", "then", lineterm="", n=1))


def left_lines(left: Sequence[LeftOut]) -> Iterator[str]:
    """Yield what the machine does not get, one line for each reason."""
    for reason in dict.fromkeys(row.reason for row in left):
        names = sorted({row.what for row in left if row.reason == reason})
        yield f"left out    {', '.join(names)}: {reason}"


def finding_lines(findings: Iterable[Finding], left: Sequence[LeftOut]) -> Iterator[str]:
    """Yield the checks that fail; one of a fix that this machine cannot have whole is marked."""
    partial = {row.origin for row in left}
    for row in findings:
        note = " (only in part on this machine)" if row.id in partial else ""
        yield f"fails       {row.id}{note}: {row.seen or row.title}\n            next: {row.remedy}"


def step_rows(steps: Iterable[PathChange]) -> list[dict[str, Any]]:
    """Return the changes as JSON types: kind, path, old, new, why, and whether what is there is kept."""
    keys = ("kind", "path", "old", "new", "why", "keep")
    return [{key: getattr(step, key) for key in keys} for step in steps]


def left_rows(left: Iterable[LeftOut]) -> list[dict[str, str]]:
    """Return what the machine does not get as JSON types."""
    return [{"what": row.what, "fix": row.origin, "reason": row.reason} for row in left]


def compared(wanted: Wanted, plan: ApplyPlan, *, differences: bool) -> tuple[dict[str, Any], str]:
    """Return what a machine lacks of what is wanted, as JSON types and as text."""
    layout, state = wanted.layout, "differs" if plan.steps else "unchanged"
    lines = [f"{wanted.target}  {state}: {len(plan.steps)} changes at {layout.prefix or '/'}"]
    lines += [*plan_lines(plan, differences=differences), *left_lines(plan.left)]
    data = {"target": wanted.target, "prefix": layout.prefix, "state": state}
    return {**data, "steps": step_rows(plan.steps), "left": left_rows(plan.left)}, "\n".join(lines)


def brought(
    wanted: Wanted,
    left: Sequence[LeftOut],
    steps: Sequence[PathChange],
    kept: Sequence[str],
    checks: tuple[int, Sequence[Finding]],
) -> tuple[dict[str, Any], str]:
    """Return what was done, as JSON types and as text; `checks` are how many there are, and those that fail."""
    layout, state = wanted.layout, "applied" if steps else "unchanged"
    count, findings = checks
    changes = f", {len(steps)} changes" if steps else ""
    lines = [f"{wanted.target}  {state}{changes}: {count - len(findings)} of {count} checks hold"]
    lines += [f"kept        {path}" for path in kept]
    lines += [*left_lines(left), *finding_lines(findings, left)]
    data = {
        "target": wanted.target,
        "prefix": layout.prefix,
        "python": layout.python,
        "state": state,
        "steps": step_rows(steps),
        "kept": list(kept),
        "left": left_rows(left),
        "checks": {"count": count, "failed": [row.as_json() for row in findings]},
    }
    return data, "\n".join(lines)
