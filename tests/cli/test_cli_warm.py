"""`rlbox warm`: real files, driven out of the page cache and brought back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fakes import Rlbox

SIZE = (8 << 20) + 5


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder as the Hugging Face cache makes it: a snapshot of links to the files."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots/main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number in range(2):
        (blobs / f"b{number}").write_bytes(os.urandom(SIZE))
        (snapshot / f"model-{number}.safetensors").symlink_to(blobs / f"b{number}")
    (snapshot / "again.safetensors").symlink_to(blobs / "b0")
    for path in blobs.iterdir():
        drive_out(path)
    return snapshot


def drive_out(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def test_cold_files_are_read_once_and_proven(rlbox: Rlbox, model: Path) -> None:
    before = rlbox("warm", str(model), "--dry-run", "--json").data
    if before["resident"] == before["size"]:
        pytest.skip("this file system keeps its files in memory")
    assert (before["size"], before["read"], before["warm"]) == (2 * SIZE, 0, False)
    said = rlbox("warm", str(model), "--json")
    assert said.code == 0
    assert (said.data["read"], said.data["resident"], said.data["warm"]) == (2 * SIZE, 2 * SIZE, True)
    assert said.data["resident_before"] == before["resident"]
    again = rlbox("warm", str(model))
    assert again.out == "2 files, 16.8 MB: 100 % in memory, nothing was read\n"


def test_more_than_the_memory_is_refused_before_anything_is_read(
    rlbox: Rlbox, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlbox.system.limits.get_available_memory", lambda: 1 << 20)
    if rlbox("warm", str(model), "--dry-run", "--json").data["warm"]:
        pytest.skip("this file system keeps its files in memory")
    said = rlbox("warm", str(model))
    assert said.code == 5
    assert said.err.startswith("rlbox: error: 16.8 MB do not stay in memory: the page cache can have 1.0 MB here\n")


def test_what_does_not_stay_is_said(rlbox: Rlbox, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.system.prefetch._count_cached_bytes", lambda handle, size: size // 2)
    said = rlbox("warm", str(model), "--json")
    assert said.code == 1
    assert (said.data["read"], said.data["resident"], said.data["warm"]) == (2 * SIZE, 2 * (SIZE // 2), False)
    assert said.err == (
        "warm: what was read did not stay in memory, since something else needs it; end that, or warm less\n"
    )
