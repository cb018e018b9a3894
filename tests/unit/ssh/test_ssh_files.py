"""Files of a machine are listed, fetched and sent; this machine stands for it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from rlbox.errors import WorkFailed
from rlbox.ssh.files import (
    DownloadDirectory,
    RemoteStat,
    list_remote_files,
    parse_remote_file_listing,
    replace_remote_tree,
    resume_verified_upload,
)
from rlbox.system.command import PIPE, ProcessHandle, start_command
from rlbox.values import Command


class LocalShell:
    """This machine as a `RemoteShell`."""

    ssh_destination = "this machine"

    def check_output(self, command: str, error: str, stdin: str = "", *, timeout_s: float = 60) -> str:
        del error
        return subprocess.run(["sh", "-c", command], input=stdin, capture_output=True, text=True, check=True).stdout

    def start(self, command: str, *, stdin: int, stdout: int) -> ProcessHandle:
        return start_command(Command(argv=("sh", "-c", command)), stdin=stdin, stdout=stdout, stderr=PIPE)


pytestmark = pytest.mark.allow("processes")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    directory = tmp_path / "base/runs/a"
    directory.mkdir(parents=True)
    (directory / "log 1\n").write_text("hello\n")
    (directory / ".reserve").write_text("space")
    (directory / "link").symlink_to("/etc/passwd")
    (tmp_path / "base/at").write_text("")
    return tmp_path / "base"


def test_listing_has_regular_files_without_links(base: Path) -> None:
    files, errors = list_remote_files(LocalShell(), str(base), ["runs/a", "nowhere", "at"], with_sha256=True)
    assert [(file.path, file.size) for file in files] == [("runs/a/log 1\n", 6), ("at", 0)]
    assert files[0].sha256 == "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
    assert errors == ()
    (file, _), _ = list_remote_files(LocalShell(), str(base), ["runs/a", "at"])
    assert (file.sha256, file.is_unchanged_since(files[0]), file.is_unchanged_since(None)) == ("", True, False)


@pytest.mark.parametrize(
    "record",
    [{"path": "/etc/x", "size": 1, "mtime": 1}, {"path": "../x", "size": 1, "mtime": 1}, {"path": "x"}, "x", 1, {}],
)
def test_listing_that_is_wrong_is_refused(record: object) -> None:
    with pytest.raises(WorkFailed, match="the list of files"):
        parse_remote_file_listing(json.dumps(record))


def test_listing_tells_what_cannot_be_read() -> None:
    listing = parse_remote_file_listing(
        json.dumps({"path": "x", "size": 0, "mtime": 0, "trouble": "Permission denied"})
    )
    assert listing == ((), ("x: Permission denied",))


def test_file_that_changed_is_no_longer_unchanged() -> None:
    file = RemoteStat(path="a", size=1, mtime=2, sha256="x")
    assert file.is_unchanged_since(RemoteStat(path="a", size=1, mtime=2))
    assert not file.is_unchanged_since(RemoteStat(path="a", size=1, mtime=3))


def test_download_continues_a_part_and_remembers_what_is_here(base: Path, tmp_path: Path) -> None:
    (base / "large").write_bytes(b"x" * (3 << 20))
    directory = DownloadDirectory(tmp_path / "record.json", tmp_path / "here")
    (tmp_path / "here").mkdir()
    (tmp_path / "here/large.part").write_bytes(b"x" * (1 << 20))
    files, _ = list_remote_files(LocalShell(), str(base), ["runs/a", "large"], with_sha256=True)
    passed: list[int] = []
    directory.fetch_verified(LocalShell(), str(base), files, passed.append)
    assert (tmp_path / "here/large").read_bytes() == (base / "large").read_bytes()
    assert sum(passed) == 6 + (3 << 20)
    assert DownloadDirectory(tmp_path / "record.json").find_unverified(files) == []


@pytest.mark.parametrize("text", ["hullo\n", "he", None])
def test_download_of_what_changed_since_the_listing_fails_and_keeps_the_others(
    base: Path, tmp_path: Path, text: str | None
) -> None:
    files, _ = list_remote_files(LocalShell(), str(base), ["runs/a", "at"], with_sha256=True)
    changed = base / files[0].path
    changed.unlink() if text is None else changed.write_text(text)
    directory = DownloadDirectory(tmp_path / "record.json", tmp_path)
    with pytest.raises(WorkFailed, match="does not arrive as it is listed"):
        directory.fetch_verified(LocalShell(), str(base), files, lambda count: None)
    assert [file.path for file in directory.find_unverified(files)] == [files[0].path]


def test_file_and_tree_are_sent(base: Path, tmp_path: Path) -> None:
    goal = tmp_path / "there/file"
    goal.parent.mkdir()
    Path(f"{goal}.part").write_text("hel")
    (tmp_path / "file").write_text("hello")
    resume_verified_upload(LocalShell(), tmp_path / "file", str(goal), lambda count: None)
    assert goal.read_text() == "hello"
    name = "runs/a/log 1\n"
    replace_remote_tree(LocalShell(), {name: base / name}, str(tmp_path / "tree"))
    assert (tmp_path / "tree/runs/a/log 1\n").read_text() == "hello\n"
