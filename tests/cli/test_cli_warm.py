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


def is_in_memory(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            data = os.preadv(file.fileno(), [bytearray(SIZE)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
    return data == SIZE


def test_cold_files_are_read_once(rlbox: Rlbox, model: Path) -> None:
    blobs = sorted((model.parent.parent / "blobs").iterdir())
    if any(map(is_in_memory, blobs)):
        pytest.skip("this file system keeps its files in memory")
    said = rlbox("warm", str(model), "--json")
    assert (said.code, said.data["size"], len(said.data["files"])) == (0, 2 * SIZE, 2)
    assert all(map(is_in_memory, blobs))
    assert rlbox("warm", str(model)).out.startswith("2 files, 16.8 MB: read into memory in ")


def test_more_than_the_memory_is_refused_before_anything_is_read(
    rlbox: Rlbox, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlbox.cli.data.get_available_memory_bytes", lambda: 1 << 20)
    for options in ((), ("--dry-run",)):
        said = rlbox("warm", str(model), *options)
        assert said.code == 5
        assert "16.8 MB do not stay in memory: the page cache can have 1.0 MB here" in said.out + said.err
