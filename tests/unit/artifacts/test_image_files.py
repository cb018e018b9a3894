"""Files of a base image's layers stay in their folder, whatever links the layers hold."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from rlbox.artifacts.base_image import _below, _take

Entry = tuple[str, str]
"""A name, and its text, or `-> PATH` for a link."""


def lay(folder: Path, *entries: Entry) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in entries:
            member = tarfile.TarInfo(name)
            if text.startswith("-> "):
                member.type, member.linkname = tarfile.SYMTYPE, text[3:]
            member.size = 0 if text.startswith("-> ") else len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    packed.seek(0)
    with tarfile.open(fileobj=packed, mode="r|*") as tar:
        for member in _below(tar, ("etc",)):
            _take(tar, member, folder)


@pytest.mark.parametrize(
    "entries",
    [
        (("etc/apt", "-> ../../outside"), ("etc/apt/x", "planted")),
        (("etc/a", "-> b"), ("etc/b", "-> ../../outside"), ("etc/a/x", "planted")),
        (("etc/x", "-> ../../outside/x"), ("etc/x", "planted")),
        (("etc/d", "-> ../../outside"), ("etc/d/.wh.kept", "")),
        (("etc/../../outside/x", "planted"),),
        (("/etc/x", "-> /outside/x"), ("./etc/x", "planted")),
    ],
)
def test_nothing_is_written_or_removed_outside(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    folder, outside = tmp_path / "in" / "root", tmp_path / "in" / "outside"
    folder.mkdir(parents=True)
    outside.mkdir()
    (outside / "kept").write_text("kept")
    lay(folder, *entries)
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert all(path.resolve().is_relative_to(folder) for path in folder.rglob("*"))


def test_links_within_are_kept_and_later_files_take_their_place(tmp_path: Path) -> None:
    lay(tmp_path, ("etc/a", "text"), ("etc/b", "-> a"), ("etc/c", "-> b"), ("etc/c", "own"))
    assert ((tmp_path / "etc/b").read_text(), (tmp_path / "etc/c").read_text()) == ("text", "own")
    assert (tmp_path / "etc/a").read_text() == "text"
