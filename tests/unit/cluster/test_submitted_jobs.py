"""What goes along with a job, how it ends, and how lines of several nodes come into one order."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlbox.cluster.jobs import (
    LARGEST_PACKAGE,
    LogLine,
    LogLineTimestamper,
    find_upload_file_sizes,
    is_excluded_itself,
    parse_leading_utc_time,
    read_job,
)
from rlbox.errors import SpecError


@pytest.mark.parametrize(
    ("path", "pattern", "out"),
    [
        ("a/__pycache__", "__pycache__", True),
        ("database", "data", False),
        ("a/b.ckpt", "*.ckpt", True),
        ("src/data", "src/data", True),
        ("other/src/data", "src/data", False),
        ("src/data", "/data", True),
        ("data", "data/", True),
    ],
)
def test_what_stays_here(path: str, pattern: str, out: bool) -> None:
    assert is_excluded_itself(path, [pattern]) is out


def test_what_is_too_large_names_its_largest_file(tmp_path: Path) -> None:
    with (tmp_path / "data").open("wb") as file:
        file.truncate(LARGEST_PACKAGE)
    assert find_upload_file_sizes(tmp_path, []) == {"data": LARGEST_PACKAGE}
    (tmp_path / "more").write_text("x")
    with pytest.raises(SpecError, match="the working directory has ") as caught:
        find_upload_file_sizes(tmp_path, [])
    assert str(caught.value.next_step).startswith("--exclude data;")


def test_files_of_a_directory_go_along(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "pkg").mkdir(parents=True)
    (work / "pkg/run.py").write_text("print(1)")
    (work / ".git").mkdir()
    (work / ".git/HEAD").write_text("x")
    (work / "link.py").symlink_to("pkg/run.py")
    (work / "lost").symlink_to("nowhere")
    (work / "big").write_text("1" * 100)
    assert find_upload_file_sizes(work, ["big"]) == {"link.py": 8, "pkg/run.py": 8}
    with pytest.raises(SpecError, match="the working directory is missing"):
        find_upload_file_sizes(tmp_path / "none", [])


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"status": "SUCCEEDED", "driver_exit_code": 0}, 0),
        ({"status": "FAILED", "driver_exit_code": 3}, 3),
        ({"status": "FAILED", "driver_exit_code": -9}, 1),
        ({"status": "FAILED", "message": "runtime_env"}, 1),
        ({"status": "STOPPED", "driver_exit_code": 0}, 1),
    ],
)
def test_how_a_job_ended(row: dict[str, object], code: int) -> None:
    job = read_job({"submission_id": "job-1", "job_id": "02000000", **row})
    assert (job.has_ended, job.cli_exit_code, job.id, job.ray_job_id) == (True, code, "job-1", "02000000")
    assert not read_job({"submission_id": "job-1", "status": "RUNNING"}).has_ended


def test_times_of_lines() -> None:
    at = 1764151200.0
    assert parse_leading_utc_time("[2025-11-26 10:00:00,500 I 7 7] (raylet) x") == at + 0.5
    assert parse_leading_utc_time("2025-11-26 10:00:00,123\tINFO worker.py:1 -- x") == at + 0.123
    assert parse_leading_utc_time("2025-11-26T10:00:00Z x") == at
    assert parse_leading_utc_time("2025-13-26 10:00:00 x") is None
    assert parse_leading_utc_time("loss 2.1") is None


def read(clocks: LogLineTimestamper, node: str, text: str, written: float) -> list[LogLine]:
    return list(clocks.timestamp_lines(node, [("w.out", text, written)]))


def test_lines_of_nodes_whose_clocks_differ_come_in_their_order() -> None:
    """`b` is an hour ahead; what it wrote second is second."""
    clocks = LogLineTimestamper({"a": 0.0, "b": 3600.0})
    first = read(clocks, "a", "2025-11-26 10:00:01 one\n2025-11-26 10:00:03 three\n  more\n", 2e9)
    lines = [*first, *read(clocks, "b", "2025-11-26 11:00:02 two\n", 2e9)]
    lines.sort(key=lambda line: line.at)
    assert [line.text.split()[-1] for line in lines] == ["one", "two", "three", "more"]
    assert lines[1].format() == "10:00:02.000 b w.out: 2025-11-26 11:00:02 two"


def test_lines_without_a_time_go_with_the_one_before_and_new_ones_are_new() -> None:
    clocks = LogLineTimestamper({"a": 0.0, "b": 0.0})
    assert [line.at for line in read(clocks, "a", "x\ny\n", 100.0)] == [100.0, 100.0]
    assert [line.at for line in read(clocks, "a", "z\n", 200.0)] == [200.0]
