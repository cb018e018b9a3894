"""From findings to a report: one fault is one finding, and the catalogue's remedy wins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlbox.doctor.report import Report, format_report, format_summary, merge_reports, parse_report, resolve_findings
from rlbox.findings import Finding, load_finding

TRUNCATED = Finding(
    id="file-truncated", title="files of vllm are damaged", seen="12 bytes of 99", breaks=("extension-*",)
)
LOAD = Finding(id="extension-load", title="a compiled extension cannot be loaded")
SMALL = Finding(id="shm-too-small", title="shared memory is too small", level="warning", covers=("nccl-shm",))


def test_a_finding_survives_json() -> None:
    full = replace(SMALL, seen="64 MiB", where="x", remedy="y", repair=("mode", "/x", "0755"), breaks=("ray-*",))
    assert load_finding(full.as_json() | {"a key": "of a newer rlbox"}) == full
    assert full.as_json()["fixable"] is True


OVERWRITTEN = Finding(id="package-overwritten", title="", breaks=("file-*",))
EVERYTHING = Finding(id="stack-missing", title="", breaks=("*",))
SHM_FIX = Finding(id="nccl-shm", title="fix nccl-shm is not in effect", remedy="--shm-size=16g")
OTHER_FIX = Finding(id="ray-dedup-logs", title="", remedy="set it")
FULL = [Finding(id=name, title="", covers=("disk-full",)) for name in ("one", "two")]


@pytest.mark.parametrize(
    ("own", "fixes", "left"),
    [
        ([LOAD, TRUNCATED], [], (TRUNCATED,)),
        ([LOAD, TRUNCATED, OVERWRITTEN], [], (OVERWRITTEN,)),
        ([EVERYTHING], [], (EVERYTHING,)),
        ([SMALL], [SHM_FIX], (replace(SMALL, remedy="--shm-size=16g", level="error"),)),
        ([SMALL], [OTHER_FIX], (OTHER_FIX, SMALL)),
        ([], FULL, (FULL[0],)),
    ],
    ids=["consequence", "chain", "itself", "remedy of the fix", "a fix of its own, errors first", "same cause"],
)
def test_findings_that_mean_the_same_or_follow_are_one(
    own: list[Finding], fixes: list[Finding], left: tuple[Finding, ...]
) -> None:
    assert resolve_findings(own, fixes).findings == left


def test_host_and_container_make_one_report() -> None:
    host, inside = Report(findings=(SMALL,), checks=3, unfinished=("a: b",)), Report(findings=(SMALL, LOAD), checks=4)
    assert merge_reports([host, inside], 2.0) == Report(
        findings=(LOAD, SMALL), checks=7, unfinished=("a: b",), seconds=2.0
    )


def test_a_report_survives_json() -> None:
    report = Report(findings=(SMALL,), follows=(LOAD,), checks=3, unfinished=("torch: late",), seconds=1.5)
    assert parse_report(report.as_json()) == report


def test_text_of_a_finding() -> None:
    row = replace(TRUNCATED, where="/opt/x.so", remedy="start a new container", repair=("link", "a", "b"))
    assert format_report(Report(findings=(row,))) == (
        "error: file-truncated: files of vllm are damaged: 12 bytes of 99\n"
        "  where: /opt/x.so\n"
        "  next:  start a new container\n"
        "         or: rlbox doctor --fix"
    )


def test_notes_and_what_follows_are_said_on_demand() -> None:
    report = Report(findings=(replace(SMALL, level="note"),), follows=(LOAD,))
    assert format_report(report) == ""
    assert format_report(report, verbose=True).splitlines() == [
        "note: shm-too-small: shared memory is too small",
        "follows: extension-load: a compiled extension cannot be loaded",
    ]


def test_summary_line() -> None:
    assert format_summary(Report(checks=31, seconds=4.21)) == "doctor: 31 checks, nothing found, 4.2 s"
    late = Report(checks=9, findings=(LOAD, TRUNCATED, SMALL), unfinished=("torch: busy",), seconds=9)
    assert format_summary(late) == "doctor: 9 checks, 2 errors, 1 warning, not finished: torch: busy, 9 s"
    assert late.has_errors
    assert not Report(findings=(SMALL,)).has_errors
