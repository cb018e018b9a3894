"""From findings to a report: one fault is one finding, and the catalogue's remedy wins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlbox.doctor.report import (
    DoctorReport,
    format_report,
    merge_and_split_off_explained,
    merge_reports,
    parse_report,
)
from rlbox.findings import Finding

TRUNCATED = Finding(
    id="file-truncated", title="files of vllm are damaged", seen="12 bytes of 99", breaks=("extension-*",)
)
LOAD = Finding(id="extension-load", title="a compiled extension cannot be loaded")
SMALL = Finding(id="shm-too-small", title="shared memory is too small", level="warning", covers=("nccl-shm",))


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
    assert merge_and_split_off_explained(own, fixes).findings == left


def test_host_and_container_make_one_report() -> None:
    host, inside = (
        DoctorReport(findings=(SMALL,), checks=3, unfinished=("a: b",)),
        DoctorReport(findings=(SMALL, LOAD), checks=4),
    )
    assert merge_reports([host, inside], 2.0) == DoctorReport(
        findings=(LOAD, SMALL), checks=7, unfinished=("a: b",), seconds=2.0
    )


def test_a_report_survives_json() -> None:
    report = DoctorReport(findings=(SMALL,), follows=(LOAD,), checks=3, unfinished=("torch: late",), seconds=1.5)
    assert parse_report(report.as_json()) == report


def test_notes_and_what_follows_are_said_on_demand() -> None:
    report = DoctorReport(findings=(replace(SMALL, level="note"),), follows=(LOAD,))
    assert format_report(report) == ""
    assert format_report(report, with_notes_and_follows=True).splitlines() == [
        "note: shm-too-small: shared memory is too small",
        "follows: extension-load: a compiled extension cannot be loaded",
    ]
