"""The checks of the fixes that an image has: which are run when, and what a failed one says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlbox.doctor.judge.judge import Judge
from rlbox.findings import SHOULD_BE, Finding

# What a shell says that could not start a program: nothing about the fix.
_NOT_RUN = ("Resource temporarily unavailable", "Cannot fork", "Cannot allocate memory", "No space left on device")
TIMED_OUT = 124  # of coreutils' timeout


@dataclass(frozen=True, kw_only=True)
class FixCheck:
    """The check of one fix, as the image's manifest has it; `partial` says that this machine has the fix in part."""

    id: str
    title: str
    remedy: str
    heals: tuple[str, ...]
    run: str
    partial: bool = False


def checks_of(manifest: Mapping[str, Any], phase: str) -> tuple[FixCheck, ...]:
    """Return the checks of an image's manifest that are for `phase`: build, run or doctor."""
    rows = [row for row in manifest.get("fixes", ()) if row.get("check") and phase in row["check"].get("when", ())]
    return tuple(
        FixCheck(
            id=str(row["id"]),
            title=str(row["title"]),
            remedy=str(row["remedy"]),
            heals=tuple(map(str, row.get("heals", ()))),
            run=str(row["check"]["run"]),
            partial=bool(row["check"].get("partial")),
        )
        for row in rows
    )


def judge_checks(checks: Sequence[FixCheck], outcomes: Iterable[tuple[int, str]]) -> tuple[Finding, ...]:
    """Return a finding for each check that failed; `outcomes` are exit code and output in the order of the checks.

    A check that could not be run, or was too slow, is no finding.
    """
    rows = zip(checks, outcomes, strict=False)
    return tuple(finding for check, (code, output) in rows for finding in judge_fix(check, code, output))


def _in_effect(check: FixCheck, code: int, output: str) -> Iterator[Finding]:
    if code not in (0, TIMED_OUT) and not any(words in output for words in _NOT_RUN):
        yield Finding(
            id=check.id,
            title=f"fix {check.id} is {'in effect in part' if check.partial else 'not in effect'}",
            level="note" if check.partial else "error",
            seen=_last_line(output) or f"its check ended with {code}",
            where=f"{SHOULD_BE}{check.title}",
            remedy=check.remedy,
            covers=check.heals,
        )


judge_fix = Judge(checks=(_in_effect,))
"""Why one fix is not in effect, by exit code and output of its check."""


def with_dependents(findings: Iterable[Finding], checks: Sequence[FixCheck], mount: str) -> list[Finding]:
    """Return the findings; one about the data disk or the stack's files explains every check that reads there too."""
    places = {"data-disk-": mount, "tmp-": "/tmp", "file-": "site-packages", "package-": "site-packages"}  # noqa: S108
    found = []
    for finding in findings:
        place = next((text for start, text in places.items() if finding.id.startswith(start)), "")
        ids = tuple(check.id for check in checks if place and finding.level == "error" and place in check.run)
        found.append(replace(finding, breaks=(*finding.breaks, *ids)))
    return found


def _last_line(output: str) -> str:
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
