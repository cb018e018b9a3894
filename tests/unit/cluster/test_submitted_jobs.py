"""What goes along with a job, how it ends, and how lines of several nodes come into one order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clusterfacts import existing

from rlbox.cluster.jobs import (
    LARGEST_PACKAGE,
    ClusterJob,
    LogReader,
    is_excluded_itself,
    iterate_lines_with_own_or_previous_time,
    measure_upload_raise_if_too_large,
    parse_leading_utc_time,
)
from rlbox.cluster.node.facts import RayInstance
from rlbox.cluster.nodes import NodePool
from rlbox.errors import SpecError
from rlbox.target.target import ClusterNode


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
    assert measure_upload_raise_if_too_large(str(tmp_path), []) == {"data": LARGEST_PACKAGE}
    (tmp_path / "more").write_text("x")
    with pytest.raises(SpecError, match="the working directory has ") as caught:
        measure_upload_raise_if_too_large(str(tmp_path), [])
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
    assert measure_upload_raise_if_too_large(str(work), ["big"]) == {"link.py": 8, "pkg/run.py": 8}
    assert measure_upload_raise_if_too_large(None, []) == {}


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"status": "SUCCEEDED", "exit_code": 0}, 0),
        ({"status": "FAILED", "exit_code": 3}, 3),
        ({"status": "FAILED", "exit_code": -9}, 1),
        ({"status": "FAILED", "message": "runtime_env"}, 1),
        ({"status": "STOPPED", "exit_code": 0}, 1),
    ],
)
def test_how_a_job_ended(row: dict[str, Any], code: int) -> None:
    job = ClusterJob(id="job-1", **row)
    assert (job.has_ended, job.cli_exit_code) == (True, code)
    assert not ClusterJob(id="job-1", status="RUNNING").has_ended


def test_times_of_lines() -> None:
    at = 1764151200.0
    assert parse_leading_utc_time("[2025-11-26 10:00:00,500 I 7 7] (raylet) x") == at + 0.5
    assert parse_leading_utc_time("2025-11-26 10:00:00,123\tINFO worker.py:1 -- x") == at + 0.123
    assert parse_leading_utc_time("2025-11-26T10:00:00Z x") == at
    assert parse_leading_utc_time("2025-13-26 10:00:00 x") is None
    assert parse_leading_utc_time("loss 2.1") is None


def test_lines_without_a_time_go_with_the_one_before() -> None:
    rows = list(
        iterate_lines_with_own_or_previous_time(
            "first\n2025-11-26 10:00:01 one\n  more\n2025-11-26 10:00:03 three\n", 2e9
        )
    )
    assert [at - rows[0][0] for at, __ in rows] == [0, 0, 0, 2]
    assert list(iterate_lines_with_own_or_previous_time("x\ny\n", 100.0)) == [(100.0, "x"), (100.0, "y")]


class Played:
    """A node whose log gained this text each time it is asked."""

    def __init__(self, name: str, *texts: str) -> None:
        self.name, self.spec, self.asked = name, ClusterNode(name=name, data="/data"), list[dict[str, int]]()
        self._texts = list(texts)

    def call(self, function: str, /, offsets: dict[str, int], **arguments: Any) -> dict[str, Any]:
        self.asked.append(dict(offsets))
        return {"w.out": (self._texts.pop(0), 2e9, 10 * len(self.asked))}


def test_lines_of_nodes_whose_clocks_differ_come_in_their_order() -> None:
    """`b` is an hour ahead; what it wrote second is second. What was read is not read again."""
    late = "2025-11-26 10:00:01 one\n2025-11-26 10:00:03 three\n  more\n"
    nodes = {
        "a": Played("a", late, "2025-11-26 10:00:04 s3cret-word\n"),
        "b": Played("b", "2025-11-26 11:00:02 two\n", ""),
    }
    pool: Any = NodePool(nodes)  # type: ignore[arg-type]
    instances = {name: RayInstance(id=name, name="n", image="i", labels={}, status="running") for name in "ab"}
    cluster = existing(SimpleNamespace(pool=pool), instances, clock_offsets_s={"a": 0.0, "b": 3600.0})
    reader = LogReader(cluster, "ab", ["*.out"], {"RLBOX_SECRETS": "WORD", "WORD": "s3cret-word"})
    lines = reader.read()
    assert [line.text.split()[-1] for line in lines] == ["one", "two", "three", "more"]
    assert lines[1].format() == "10:00:02.000 b w.out: 2025-11-26 11:00:02 two"
    assert [line.text for line in reader.read()] == ["2025-11-26 10:00:04 ***"]
    assert nodes["a"].asked == [{}, {"w.out": 10}]
