"""Files below a data disk: no link is followed, whoever walks, and only regular files are opened."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from rlbox.system import safe_files


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the user's, beside the disk, that must stay as it is."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    return folder


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    (folder / "runs/r-1").mkdir(parents=True)
    (folder / "runs/r-1/run.json").write_text("{}")
    return folder


DEEDS: dict[str, Callable[[Path], object]] = {
    "read": safe_files.read_bytes,
    "open": safe_files.open_regular_file,
    "append": lambda path: safe_files.open_regular_fd(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    "truncate": lambda path: safe_files.open_regular_fd(path, os.O_WRONLY | os.O_TRUNC),
}
BY_NAME: dict[str, Callable[[Path], object]] = {
    "write": lambda path: safe_files.replace_file(path, b"theirs"),
    "create": lambda path: safe_files.create_file(path, b"theirs"),
    "remove": safe_files.remove_file,
    "look": safe_files.lstat_path,
}


@pytest.mark.parametrize("deed", DEEDS)
def test_a_link_in_the_place_of_a_file(disk: Path, outside: Path, deed: str) -> None:
    link = disk / "runs/r-1/run.json"
    link.unlink()
    link.symlink_to(outside / "notes.txt")
    with pytest.raises(OSError, match="it is a link, and rlbox follows none") as refused:
        DEEDS[deed](link)
    assert (refused.value.errno, refused.value.filename) == (errno.ELOOP, str(link))
    assert (outside / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("deed", [*DEEDS, *BY_NAME])
@pytest.mark.parametrize("part", ["runs", "runs/r-1"])
def test_a_link_on_the_way(disk: Path, outside: Path, deed: str, part: str) -> None:
    (disk / part).rename(disk / "away")
    (disk / part).symlink_to(outside)
    (outside / "r-1").mkdir()
    for folder in (outside, outside / "r-1"):
        (folder / "run.json").write_text("mine")
    with pytest.raises(OSError, match="it is a link, and rlbox follows none") as refused:
        {**DEEDS, **BY_NAME}[deed](disk / "runs/r-1/run.json")
    assert refused.value.filename == str(disk / part)
    assert {path.read_text() for path in (outside / "run.json", outside / "r-1/run.json")} == {"mine"}


def test_a_link_itself_is_replaced_or_removed(disk: Path, outside: Path) -> None:
    for deed in (lambda path: safe_files.replace_file(path, b"new"), safe_files.remove_file):
        link = disk / "runs/r-1/plan.json"
        link.unlink(missing_ok=True)
        link.symlink_to(outside / "notes.txt")
        deed(link)
        assert not link.is_symlink()
    assert (outside / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "device"])
def test_what_is_no_regular_file_is_refused_at_once(disk: Path, kind: str) -> None:
    path = Path("/dev/null") if kind == "device" else disk / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK)
    with pytest.raises(OSError):  # noqa: PT011 (a socket is refused by the kernel)
        safe_files.read_bytes(path)
    assert not safe_files.is_regular_file(path)


def test_bounds_and_dots(disk: Path) -> None:
    path = disk / "runs/r-1/run.json"
    assert safe_files.read_bytes(path, 2) == b"{}"
    with pytest.raises(OSError, match="it is larger than 1 bytes"):
        safe_files.read_bytes(path, 1)
    with pytest.raises(OSError, match=r"no \.\. and no NUL in it"):
        safe_files.read_bytes(disk / "runs/../runs/r-1/run.json")
    with pytest.raises(OSError, match="no NUL in it"):
        safe_files.read_bytes(disk / "runs\0/r-1/run.json")
    with pytest.raises(FileNotFoundError):
        safe_files.read_bytes(disk / "runs/r-2/run.json")


def test_writing(disk: Path) -> None:
    path = disk / "runs/r-1/run.json"
    safe_files.replace_file(path, b"new", 0o600, durable=True)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
    safe_files.create_file(disk / "begun", b"1")
    with pytest.raises(FileExistsError):
        safe_files.create_file(disk / "begun", b"2")
    safe_files.ensure_dir_without_parents(disk / "more")
    safe_files.ensure_dir_without_parents(disk / "more")
    assert safe_files.list_directory_empty_if_missing(disk) == ["begun", "more", "runs"]
    assert safe_files.list_directory_empty_if_missing(disk / "none") == []
    safe_files.remove_file(disk / "none")


def test_a_link_that_leads_to_the_disk_is_the_users(disk: Path, tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to(disk)
    path = tmp_path / "here/runs/r-1/run.json"
    with pytest.raises(OSError, match="it is a link"):
        safe_files.read_bytes(path)
    assert safe_files.read_bytes(path.resolve()) == safe_files.read_bytes(path, follow_links=True) == b"{}"


def test_a_second_name_of_a_file_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("of the host")
    os.link(tmp_path / "file", tmp_path / "name")
    with pytest.raises(OSError, match="a second name"):
        safe_files.open_regular_fd(tmp_path / "name", os.O_WRONLY | os.O_APPEND)
    assert safe_files.read_bytes(tmp_path / "name") == b"of the host"
    safe_files.replace_file(tmp_path / "name", b"of the run")
    assert (tmp_path / "file").read_text() == "of the host"
