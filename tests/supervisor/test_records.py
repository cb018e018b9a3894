"""The files of a run: whole, typed, readable by others while it goes; manifests; tails."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from supervised import file_rule

from rlbox.errors import SpecError
from rlbox.gate.files import check_file_rule
from rlbox.record.state import RUN_FILE, load_run_state
from rlbox.system.tail import FileFollower


def sum_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, "this folder holds no run"),
        ('{"schema": 1, "run_id', "run.json cannot be read"),
        ("[]", "run.json was not written by this rlbox (it reads schema 1)"),
        ('{"schema": 2}', "run.json was not written by this rlbox (it reads schema 1)"),
        ('{"schema": 1, "run_id": 3}', "run.json is not the state of a run: run_id: Input should be a valid string"),
    ],
)
def test_foreign_state(tmp_path: Path, text: str | None, what: str) -> None:
    if text is not None:
        (tmp_path / RUN_FILE).write_text(text)
    with pytest.raises(SpecError) as caught:
        load_run_state(tmp_path)
    assert caught.value.what.startswith(what)
    assert caught.value.where == str(tmp_path / RUN_FILE)


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        ({"schema": 1, "files": {"a": {"bytes": 3, "sha256": sum_of(b"abc")}}}, ""),
        ({"schema": 1, "files": {"a": {"bytes": 9, "sha256": sum_of(b"abc")}}}, "a is truncated: 3 of 9 bytes"),
        ({"schema": 1, "files": {"a": {"bytes": 2, "sha256": sum_of(b"abc")}}}, "a has 3 bytes, the manifest says 2"),
        ({"schema": 1, "files": {"a": {"bytes": 3, "sha256": ""}}}, "a differs from its sha256 in the manifest"),
        ({"schema": 1, "files": {"b": {"bytes": 3, "sha256": sum_of(b"abc")}}}, "b is not there"),
        ({"schema": 1, "files": {"../a": {"bytes": 3, "sha256": ""}}}, "../a lies outside the manifest's folder"),
        ({"schema": 1, "files": {"a": {"size": 3}}}, "a has no bytes and sha256 in the manifest"),
        ({"schema": 1, "files": {}}, "is not a manifest of schema 1 with at least one file"),
        ({"schema": 9, "files": {"a": {}}}, "is not a manifest of schema 1 with at least one file"),
        ([], "is not a manifest of schema 1 with at least one file"),
        ("torn", "is not a manifest: it is not whole JSON"),
    ],
)  # fmt: skip
def test_manifests(tmp_path: Path, manifest: Any, problem: str) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    path = tmp_path / "checkpoint.json"
    path.write_text('{"schema"' if manifest == "torn" else json.dumps(manifest))
    assert check_file_rule(file_rule(path, manifest=True), lambda: None).problem == problem


def test_tail_reads_what_is_new_and_starts_again_when_the_file_shrank(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    tail = FileFollower(path)
    assert tail.read_next_block_or_empty() == b""
    path.write_bytes(b"one")
    assert (tail.read_next_block_or_empty(), tail.read_next_block_or_empty()) == (b"one", b"")
    with open(path, "ab") as file:
        file.write(b" two")
    assert tail.read_next_block_or_empty() == b" two"
    path.write_bytes(b"new")
    assert tail.read_next_block_or_empty() == b"new"
    tail.close()
