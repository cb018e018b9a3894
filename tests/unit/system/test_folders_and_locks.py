"""Whole-file writing, the lock between processes, the data disk's check, short commands."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import LIMITS

from rlbox.app import App
from rlbox.config.project import Project
from rlbox.engine.data_disk import ensure_usable_data_dir_creating_default, resolve_data_dir_outside_system_dirs
from rlbox.errors import LockHeld, MachineError, TimedOut, WorkFailed
from rlbox.system.command import (
    PIPE,
    communicate_or_leave_running,
    run_command,
    run_command_or_raise,
    run_in_foreground,
    start_command,
)
from rlbox.system.file_lock import hold_lock
from rlbox.system.files import cache_path, write_atomic
from rlbox.values import Command, Outcome


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert cache_path("a", "b") == Path("/c/rlbox/a/b")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/h")
    assert cache_path() == Path("/h/.cache/rlbox")


def test_write_atomic(tmp_path: Path) -> None:
    path = tmp_path / "a/b.txt"
    write_atomic(path, "ä\n")
    assert (path.read_bytes(), f"{path.stat().st_mode:o}") == ("ä\n".encode(), "100644")
    write_atomic(path, b"two", mode=0o600)
    assert (path.read_bytes(), f"{path.stat().st_mode:o}") == (b"two", "100600")
    assert [entry.name for entry in path.parent.iterdir()] == ["b.txt"]


def test_a_write_that_fails_leaves_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    write_atomic(path, "old")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    path = tmp_path / "locks/build.lock"
    with hold_lock(path, "build of mine"):
        holder = path.read_text()
        assert holder.startswith(f"pid {os.getpid()} since 20")
        with pytest.raises(LockHeld) as caught, hold_lock(path, "build of mine", timeout_s=0):
            pass
        assert str(caught.value) == (
            f"another rlbox is busy with the build of mine: {holder}\n  where: {path}\n  next:  wait for it to end"
        )
        assert caught.value.exit_code == 8
        assert path.read_text() == holder
    assert path.read_text() == ""
    with hold_lock(path, "build of mine"):
        pass


def test_a_holder_that_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold_lock(path, "x"):
        path.write_text("")
        with (
            pytest.raises(LockHeld, match="another rlbox is busy with the x: holder unknown\n"),
            hold_lock(path, "x", timeout_s=0),
        ):
            pass


def test_a_lock_that_is_held_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    path, said, began = tmp_path / "lock", [], time.monotonic()
    first = hold_lock(path, "place x")
    first.__enter__()
    leave = threading.Timer(1.3, lambda: first.__exit__(None, None, None))
    leave.start()
    with hold_lock(path, "place x", on_wait=said.append):
        assert time.monotonic() - began > 1.2
    leave.join()
    assert [text.partition(" pid ")[0] for text in said] == ["waiting: another rlbox is busy with the place x:"]


@pytest.mark.parametrize(
    ("host", "chosen", "environ", "folder"),
    [
        ("/disk", None, "", "/disk"),
        ("/disk", None, "/env", "/env"),
        ("/disk", "/flag", "/env", "/flag"),
        ("~/disk", None, "", "HOME/disk"),
        ("/disk", "~/x", "", "HOME/x"),
        ("/disk", "here", "", "CWD/here"),
    ],
)
def test_the_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str, chosen: str | None, environ: str, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLBOX_DATA", environ)
    wanted = folder.replace("HOME", os.environ["HOME"]).replace("CWD", str(tmp_path))
    assert resolve_data_dir_outside_system_dirs(host, chosen) == Path(wanted)


def test_no_data_folder_is_named() -> None:
    with pytest.raises(MachineError) as caught:
        resolve_data_dir_outside_system_dirs("", None)
    assert str(caught.value) == (
        "no data disk is named\n  where: disk.host\n  next:  give --data DIR, or set RLBOX_DATA or disk.host"
    )


FREE = "rlbox.engine.data_disk.free_bytes_or_0"
WRITABLE = "rlbox.engine.data_disk._require_writable"


def read_only(*_: object) -> None:
    raise OSError(30, "Read-only file system")


def file_at(path: Path) -> Path:
    path.write_text("")
    return path


@pytest.mark.parametrize(
    ("make", "create", "where", "what"),
    [
        (lambda p, m: p / "no", False, "no", "there is no such data disk"),
        (lambda p, m: file_at(p / "f"), False, "f", "the data disk is not a directory"),
        (lambda p, m: file_at(p / "f") / "below", True, "f/below", "the data disk cannot be made: Not a directory"),
        (lambda p, m: m.setattr(WRITABLE, read_only) or p, False, "", "cannot be written: Read-only"),
        (lambda p, m: m.setattr(FREE, lambda path: 1 << 29) or p, False, "", "too full: 536.9 MB free, 2.1 GB (2 GiB)"),
    ],
    ids=["missing", "file", "below a file", "read-only", "full"],
)
def test_a_disk_that_cannot_be_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path, pytest.MonkeyPatch], Any],
    create: bool,
    where: str,
    what: str,
) -> None:
    folder = make(tmp_path, monkeypatch)
    limits = replace(LIMITS, disk_host_dir=str(folder), creates_disk_dir=create, needed_disk_gib=2.0)
    with pytest.raises(MachineError) as caught:
        ensure_usable_data_dir_creating_default(App(project=Project(folder=tmp_path)), folder, limits)
    assert what in caught.value.what
    assert caught.value.where == str(tmp_path / where)
    assert "name another with --data DIR" in caught.value.next_step


def test_only_the_targets_own_disk_is_made(tmp_path: Path) -> None:
    """What somebody named may be a slip: two minutes of a run at the root of a disk."""
    app = App(project=Project(folder=tmp_path))
    with pytest.raises(MachineError, match="there is no such data disk"):
        ensure_usable_data_dir_creating_default(
            app, tmp_path / "slip", replace(LIMITS, disk_host_dir=str(tmp_path / "disk"), creates_disk_dir=True), 0.0
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.allow("processes")
def test_commands() -> None:
    echo = Command(argv=(sys.executable, "-c", "import os; print(input(), os.environ['A'])"), env={"A": "$x"})
    assert run_command(echo, stdin="in") == Outcome(command=echo, exit_code=0, stdout="in $x\n", stderr="")
    assert run_command(Command(argv=("sh", "-c", "kill -9 $$"))).exit_code == -9
    with pytest.raises(WorkFailed) as missing:
        run_command(Command(argv=("no-such-program", "x")))
    assert str(missing.value) == "no-such-program: no such program"
    with pytest.raises(TimedOut) as slow:
        run_command(Command(argv=("sleep", "60"), timeout_s=0.01))
    assert str(slow.value) == "sleep took longer than 0.01 s"


@pytest.mark.allow("processes")
def test_a_process_that_is_left_to_itself() -> None:
    show = Command(argv=("/bin/sh", "-c", 'cat; echo "$A$HOME" >&2; sleep "$S"; exit 7'), env={"A": "a", "S": "0"})
    process = start_command(show, base_env={"A": "b", "HOME": "/h"}, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert os.getsid(process.pid) == process.pid
    assert (communicate_or_leave_running(process, b"in", 60), process.returncode) == ((b"in", b"a/h\n"), 7)
    slow = start_command(replace(show, env={"S": "60"}), stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert communicate_or_leave_running(slow, b"", 0.05) is None
    os.killpg(slow.pid, signal.SIGKILL)
    slow.communicate()
    with pytest.raises(FileNotFoundError):
        start_command(Command(argv=("no-such-program",)))


LATE = """
import os, signal, time
from rlbox.system.libc import set_parent_death_sigterm_die_if_orphaned
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.01)
    set_parent_death_sigterm_die_if_orphaned(parent)
    print("it goes on")
else:
    os.kill(parent, signal.SIGKILL)
"""


@pytest.mark.allow("processes")
def test_a_process_whose_parent_was_killed_before_it_could_ask_to_be_told_ends() -> None:
    done = run_command(Command(argv=(sys.executable, "-c", LATE), timeout_s=60))
    assert (done.exit_code, done.stdout, done.stderr) == (-signal.SIGKILL, "", "")


@pytest.mark.allow("processes")
def test_ctrl_c_is_for_what_runs_in_the_foreground() -> None:
    before = signal.getsignal(signal.SIGINT)
    script = f"kill -INT {os.getpid()}; kill -INT $$; exit 3"  # as a terminal does: both are told
    assert run_in_foreground(Command(argv=("sh", "-c", script))) == -signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.allow("processes")
def test_a_command_that_fails_is_quoted() -> None:
    script = "seq 1 20 >&2; echo not shown; exit 3"
    with pytest.raises(WorkFailed) as caught:
        run_command_or_raise(Command(argv=("sh", "-c", script)), "it does not work", "try again")
    tail = "".join(f"  | {number}\n" for number in range(6, 21))
    assert str(caught.value) == (f"it does not work (exit code 3)\n{tail}  where: sh -c {script}\n  next:  try again")
    assert run_command_or_raise(Command(argv=("true",)), "x").ok
