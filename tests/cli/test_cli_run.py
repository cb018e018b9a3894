"""`rlbox run`: the plan it shows, and everything that is refused before anything starts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import ON_IMAGE, EngineSocket, Folder, Rlbox
from freeport import free_port

from rlbox.engine.data_disk import resolve_data_dir_outside_system_dirs
from rlbox.image.context import compute_build_digest, list_hashed_context_entries
from rlbox.image.plan import load_image_plan

PORT = free_port()  # one that nothing else on this machine has; a fixed one is somebody's sooner or later
JOB = """
title = "two stages"
target = "mine"
[params]
rounds = { default = 2, help = "rounds", at_least = 1, at_most = 9 }
[profiles.learn]
rounds = 8
[ports]
http = @PORT@
[[services]]
name = "server"
title = "answers"
command = ["{python}", "-m", "server", "--port={port.http}"]
ports = ["http"]
ready = { url = "http://127.0.0.1:{port.http}" }
[[stages]]
name = "train"
title = "learns"
command = ["{python}", "train.py", "two words"]
[stages.gate]
require = [{ pattern = "loss \\\\d", count = 2 }]
forbid = [{ pattern = "NaN" }]
files = [{ path = "{run}/out" }]
[[stages]]
name = "ask"
title = "asks"
command = ["ask", "{param.rounds}"]
services = ["server"]
""".replace("@PORT@", str(PORT))


@pytest.fixture
def two(folder: Folder) -> Folder:
    """A project with a locked target and a job of two stages."""
    folder.target("mine", ON_IMAGE)
    folder.lock("mine")
    folder.job("two", JOB)
    return folder


def current_image(two: Folder) -> dict[str, Any]:
    """Return the engine's word for an image that is what the specs say now."""
    plan = load_image_plan(two.project, "mine")
    return {
        "Id": "sha256:0123456789abcdef",
        "Config": {"Labels": {"rlbox.build": compute_build_digest(list_hashed_context_entries(plan), plan.epoch)}},
    }


@pytest.mark.allow("sockets")
def test_dry_run(rlbox: Rlbox, two: Folder, engine: EngineSocket, golden: Callable[[str, str], None]) -> None:
    engine.images["rlbox/mine:tests"] = current_image(two)
    said = rlbox("run", "two", "--dry-run", "--set", "rounds=3")
    assert (said.code, said.err) == (0, "")
    disk = str(Path("~/disk").expanduser())
    golden("cli/run-dry-run.txt", said.out.replace(str(PORT), "PORT").replace(disk, "DISK"))
    assert sorted(two.files()) == ["images/mine/lock.json", "images/mine/target.toml", "jobs/two.toml"]


def read_only(*_: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


DISKS: dict[str, Any] = {
    "missing": (
        "there is no such data disk",
        "mkdir -p {disk} (or mount it there), or name another with --data DIR",
        lambda disk, patch: disk.rmdir(),
    ),
    "file": (
        "the data disk is not a directory",
        "name another with --data DIR",
        lambda disk, patch: (disk.rmdir(), disk.write_text("")),
    ),
    "read-only": (
        "the data disk cannot be written: Read-only file system",
        "remount it writable, free space, or name another with --data DIR",
        lambda disk, patch: patch.setattr("rlbox.engine.data_disk._require_writable", read_only),
    ),
    "full": (
        "the data disk is too full: 4.1 kB free, 3.2 GB (3 GiB) needed",
        "free space, or name another with --data DIR",
        lambda disk, patch: patch.setattr("rlbox.engine.data_disk.free_bytes_or_0", lambda path: 4096),
    ),
}


@pytest.mark.allow("sockets")  # docker-py is imported, not asked
@pytest.mark.parametrize("place", ["docker", "here"])
@pytest.mark.parametrize("state", DISKS)
def test_disks(
    rlbox: Rlbox, two: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, place: str
) -> None:
    """A folder that somebody named is not made, though the target has its own made."""
    what, next_step, make = DISKS[state]
    two.target("mine", ON_IMAGE.replace("need_gib = 0", "need_gib = 3"))
    disk = tmp_path / "disk"
    disk.mkdir()
    make(disk, monkeypatch)
    rlbox("run", "two", "--data", str(disk), "--place", place).check_error(5, what, next_step.format(disk=disk))
    assert disk.exists() == (state != "missing")


@pytest.mark.parametrize("place", ["docker", "here"])
@pytest.mark.parametrize("named", ["/", "/etc", "/usr/lib/rlbox", "/var", "/home", "/dev/../proc/self"])
def test_a_folder_of_the_system_is_no_data_disk(rlbox: Rlbox, two: Folder, named: str, place: str) -> None:
    said = rlbox("run", "two", "--data", named, "--place", place, "--dry-run")
    assert said.code == 5
    assert "this folder is the system's own, and no data disk" in said.err + said.out


@pytest.mark.parametrize("named", ["/dev/shm/x", "/usr/local/x", "/run/media/me/disk", "/mnt", "/var/data", "/data"])
def test_a_folder_that_is_lent_may_be_one(named: str) -> None:
    assert str(resolve_data_dir_outside_system_dirs("~/disk", named)) == os.path.realpath(named)


@pytest.mark.allow("sockets")
def test_in_place_needs_a_lock(rlbox: Rlbox, two: Folder) -> None:
    (two.path / "images/mine/lock.json").unlink()
    rlbox("run", "two", "--place", "here").check_error(2, "the lock of target mine is missing")
