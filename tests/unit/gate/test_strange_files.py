"""Files that a rule looks at may be without end, nested without end, a ring: each look ends and says what it met."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlbox.gate.files import FilesSnapshot, check_file_rule, expand_shell_glob
from rlbox.gate.metric import parse_logged_number
from rlbox.job.gate import FileRule
from rlbox.system.tail import BLOCK, FileFollower

ENDLESS = 1 << 42


def rule(path: Path, form: str = "", *, manifest: bool = False, count: int = 1) -> FileRule:
    return FileRule(path=str(path), min_bytes=1, manifest=manifest, why="", format=form, count=count)


def problem(plan: FileRule) -> str:
    return check_file_rule(plan, lambda: None).problem


def sparse(path: Path, begin: bytes = b"") -> Path:
    path.write_bytes(begin)
    os.truncate(path, ENDLESS)
    return path


def test_a_file_without_end(tmp_path: Path) -> None:
    assert problem(rule(sparse(tmp_path / "a.json"), "json")).startswith("cannot be read: it is larger than")
    assert problem(rule(sparse(tmp_path / "a.jsonl"), "jsonl")) == "line 1 is longer than 67.1 MB"
    assert problem(rule(sparse(tmp_path / "b.jsonl", b"{}\n"), "jsonl")) == "line 2 is longer than 67.1 MB"
    assert problem(rule(sparse(tmp_path / "m.json"), manifest=True)).startswith("cannot be read: it is larger than")


@pytest.mark.parametrize(
    "change",
    [
        {"schema": True},
        {"files": {"x": {"bytes": True, "sha256": "0"}}},
        {"files": {"x" * 5000: {"bytes": 1, "sha256": "0"}}},
    ],
)
def test_a_manifest_of_strange_kinds(tmp_path: Path, change: dict[str, object]) -> None:
    (tmp_path / "x").write_text("x")
    known = {"schema": 1, "files": {"x": {"bytes": 1, "sha256": "2" * 64}}}
    (tmp_path / "m.json").write_text(json.dumps({**known, **change}))
    assert problem(rule(tmp_path / "m.json", manifest=True))


def ring(folder: Path) -> None:
    for name in "abc":
        (folder / name).symlink_to(".")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [ring, lambda folder: (folder / "out").symlink_to("/")])
def test_folders_that_lead_nowhere(tmp_path: Path, make: Callable[[Path], object]) -> None:
    folder = tmp_path / "out"
    (folder / "deep").mkdir(parents=True)
    make(folder)
    before = FilesSnapshot([str(folder / "**/x")])
    assert problem(rule(folder / "**/x")) == "no files fit, at least 1 are due"
    assert problem(rule(folder)) == "the folder holds no file"
    (folder / "deep/x").write_text("x")
    assert expand_shell_glob(str(folder / "**/x")) == [folder / "deep/x"]
    assert not before.is_unchanged(folder / "deep/x")


def test_what_fits_as_a_shell_has_it(tmp_path: Path) -> None:
    for name in ("a/one.pt", "a/b/two.pt", "a/.hidden/three.pt", "a/b/.four.pt", "two.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "a/link.pt").symlink_to("one.pt")

    def found(path: str) -> list[str]:
        return [str(each.relative_to(tmp_path)) for each in expand_shell_glob(f"{tmp_path}/{path}")]

    assert found("**/*.pt") == ["a/b/two.pt", "a/link.pt", "a/one.pt"]
    assert found("*/**/two.pt") == ["a/b/two.pt"]
    assert found("**/.hidden/*") == ["a/.hidden/three.pt"]
    assert found("a/**") == ["a/b", "a/b/two.pt", "a/link.pt", "a/one.pt"]
    assert found("*/*.pt") == ["a/link.pt", "a/one.pt"]
    assert found("no/**/x") == []


def test_a_tail_passes_over_what_nobody_wrote(tmp_path: Path) -> None:
    path = sparse(tmp_path / "rows", b'{"a": 1}\n')
    with open(path, "ab") as file:
        file.write(b'\n{"a": 2}\n')
    tail, read = FileFollower(path), []
    while data := tail.read_next_block_or_empty():
        read.append(data)
    tail.close()
    assert len(read) < 8
    assert b"".join(read).replace(b"\0", b"") == b'{"a": 1}\n\n{"a": 2}\n'
    assert all(len(data) <= BLOCK for data in read)


@pytest.mark.parametrize(
    "text",
    [
        "nan",
        "-nan(ind)",
        "nan(0x7ff)",
        "tensor(nan",
        "tensor([nan],",
        "np.float32(nan)",
        "np.float64(-inf)",
        "array([nan,",
    ],
)
def test_what_is_no_number_is_seen_in_any_wrapping(text: str) -> None:
    value = parse_logged_number(text)
    assert value is not None
    assert not math.isfinite(value)


@pytest.mark.parametrize(
    "text", ["0.5", "np.float64(0.5)", "tensor(0.5,", "tensor([0.5])", "array(0.5)", "'0.5',", "0.5%"]
)
def test_a_number_is_read_in_any_wrapping(text: str) -> None:
    assert parse_logged_number(text) == 0.5


@pytest.mark.parametrize("text", ["nancy", "info", "1_000", "٠.٥", "²", "0x7f", ""])
def test_what_only_looks_like_a_number(text: str) -> None:
    assert parse_logged_number(text) is None


def test_integer_of_any_size_is_a_number() -> None:
    assert parse_logged_number(-(10**400)) == float("-inf")
