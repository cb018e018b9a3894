"""What goes along with a job, how it ends, and how lines of several nodes come into one order."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from rlbox.amounts import MIB
from rlbox.cluster.dashboard import admitted
from rlbox.cluster.jobs import read_job
from rlbox.cluster.logs import LogClock, dated, merged
from rlbox.cluster.package import MOST, check_size, find_files, is_excluded, packed
from rlbox.errors import SpecError


@pytest.mark.parametrize(
    ("path", "pattern", "out"),
    [
        (".git/config", ".git", True),
        ("a/__pycache__/b.pyc", "__pycache__", True),
        ("src/data/x", "data", True),
        ("database/x", "data", False),
        ("a/b.ckpt", "*.ckpt", True),
        ("src/data/x", "src/data", True),
        ("other/src/data/x", "src/data", False),
        ("src/data", "/data", True),
        ("x", "data/", False),
        ("data/x", "data/", True),
    ],
)
def test_what_stays_here(path: str, pattern: str, out: bool) -> None:
    assert is_excluded(path, [pattern]) is out


def test_what_is_too_large_names_its_largest_part() -> None:
    check_size("/w", {"a": MOST})
    with pytest.raises(SpecError, match=r"the working directory has .*: data .*, b 1\.0 MB") as caught:
        check_size("/w", {"b": 10**6, "data/1": 400 * MIB, "data/2": 400 * MIB})
    assert str(caught.value.next_step).startswith("--exclude data;")


def test_a_directory_is_packed_the_same_each_time(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "pkg").mkdir(parents=True)
    (work / "pkg/run.py").write_text("print(1)")
    (work / "pkg/run.py").chmod(0o755)
    (work / ".git").mkdir()
    (work / ".git/HEAD").write_text("x")
    (work / "link.py").symlink_to("pkg/run.py")
    (work / "lost").symlink_to("nowhere")
    (work / "big").write_text("1" * 100)
    files = find_files(work, ["big"])
    assert files.sizes == {"link.py": 8, "pkg/run.py": 8}
    assert files.left == ("lost",)
    with packed(files) as first, packed(files) as again:
        assert first.name == again.name
        assert first.uri == f"gcs://{first.name}"
        with zipfile.ZipFile(first.file) as whole:
            assert whole.namelist() == ["link.py", "pkg/run.py"]
            assert whole.getinfo("pkg/run.py").external_attr >> 16 & 0o777 == 0o755
    (work / "pkg/run.py").write_text("print(2)")
    with packed(find_files(work, ["big"])) as other:
        assert other.name != first.name
    with pytest.raises(SpecError, match="the working directory is missing"):
        find_files(tmp_path / "none", [])


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
    assert (job.ended, job.code, job.id, job.ray_id) == (True, code, "job-1", "02000000")
    assert not read_job({"submission_id": "job-1", "status": "RUNNING"}).ended


def test_times_of_lines() -> None:
    at = 1764151200.0
    assert dated("[2025-11-26 10:00:00,500 I 7 7] (raylet) x") == at + 0.5
    assert dated("2025-11-26 10:00:00,123\tINFO worker.py:1 -- x") == at + 0.123
    assert dated("2025-11-26T10:00:00Z x") == at
    assert dated("2025-13-26 10:00:00 x") is None
    assert dated("loss 2.1") is None


def test_lines_of_nodes_whose_clocks_differ_come_in_their_order() -> None:
    """`b` is an hour ahead; what it wrote second is second."""
    first = LogClock("a", "raylet.out", 0.0).lines("2025-11-26 10:00:01 one\n2025-11-26 10:00:03 three\n  more\n", 2e9)
    second = LogClock("b", "raylet.out", 3600.0).lines("2025-11-26 11:00:02 two\n", 2e9)
    told = merged([*first, *second])
    assert [line.text.split()[-1] for line in told] == ["one", "two", "three", "more"]
    assert [line.shown()[:31] for line in told[:2]] == [
        "10:00:01.000 a raylet.out: 2025",
        "10:00:02.000 b raylet.out: 2025",
    ]


def test_lines_without_a_time_go_with_the_one_before_and_new_ones_are_new() -> None:
    clock = LogClock("a", "w.out", 0.0)
    assert [line.at for line in clock.lines("x\ny\n", 100.0)] == [100.0, 100.0]
    assert [line.at for line in clock.lines("z\n", 200.0)] == [200.0]
    wrong = LogClock("a", "w.out", 0.0).lines("2099-01-01 00:00:00 planted\n", 100.0)
    assert [line.at for line in wrong] == [100.0]


def asked(*rows: str) -> bytes:
    return "\r\n".join(["GET /api/jobs/ HTTP/1.1", *rows]).encode()


def test_the_way_to_a_dashboard_is_for_its_own_page() -> None:
    passed = admitted(asked("Host: 127.0.0.1:8265", "Connection: keep-alive", "Accept: */*"), 8265)
    assert passed == asked("Host: 127.0.0.1:8265", "Accept: */*", "Connection: close") + b"\r\n\r\n"
    assert admitted(asked("Host: localhost:8265", "Origin: http://localhost:8265"), 8265)
    upgrade = asked("Host: localhost:8265", "Connection: Upgrade", "Upgrade: websocket")
    assert admitted(upgrade, 8265) == upgrade + b"\r\n\r\n"
    assert not admitted(asked("Host: evil.example:8265"), 8265)
    assert not admitted(asked("Host: 127.0.0.1:8265", "Origin: http://evil.example"), 8265)
    assert not admitted(asked("Host: 127.0.0.1:8265", "Host: evil.example"), 8265)
    assert not admitted(asked("Accept: */*"), 8265)
    assert not admitted(b"", 8265)
