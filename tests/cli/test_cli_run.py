"""`rlbox run`: the plan it shows, and everything that is refused before anything starts."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT, ON_IMAGE, EngineSocket, Folder, Rlbox, Said
from freeport import free_port

from rlbox.engine.data_disk import choose_data_dir
from rlbox.image.context import build_labels, list_deciding_entries
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
    return {"Id": "sha256:0123456789abcdef", "Config": {"Labels": build_labels(list_deciding_entries(plan), plan)}}


@pytest.mark.allow("sockets")
def test_dry_run(rlbox: Rlbox, two: Folder, engine: EngineSocket) -> None:
    engine.images["rlbox/mine:tests"] = current_image(two)
    disk = Path("~/disk").expanduser()
    assert rlbox("run", "two", "--dry-run", "--set", "rounds=3") == Said(
        code=0,
        out=f"""# run of two on mine, place docker, profile default
# rounds = 3  (--set)

# stage train: learns
/opt/venv/bin/python train.py 'two words'
#   gate: require loss \\d (at least 2)
#   gate: forbid NaN
#   gate: exit code 0
#   gate: listens on nothing but what the job declares
#   gate: file /data/runs/two-DRY-RUN/out
#   gate: silence at most 10 min
#   gate: total at most 1 h

# stage ask: asks
/opt/venv/bin/python -m server --port={PORT}  # service server
ask 3
#   gate: port http {PORT}
#   gate: service server
#   gate: exit code 0
#   gate: listens on nothing but what the job declares
#   gate: silence at most 10 min
#   gate: total at most 1 h

# first: the data disk {disk} is made
# verdict: this would start a run of two on mine, place docker: 2 stages
""",
        err="",
    )
    assert sorted(two.files()) == ["images/mine/lock.json", "images/mine/target.toml", "jobs/two.toml"]


@pytest.mark.usefixtures("no_engine")
def test_dry_run_as_json(rlbox: Rlbox, two: Folder) -> None:
    data = rlbox("run", "two", "--dry-run", "--json", "--profile", "learn").data
    plan = data["plan"]
    assert data["verdict"] == {
        "would": "start a run of two on mine, place docker: 2 stages",
        "exit_code": 0,
        "refused": [],
        "not_checked": [
            {"what": ["image", "network"], "why": "no Docker engine answers (unix:///var/run/docker.sock)"}
        ],
        "first": [f"the data disk {Path('~/disk').expanduser()} is made"],
    }
    assert (plan["schema"], plan["profile"], plan["params"]) == (1, "learn", {"rounds": 8})
    assert [stage["directory"] for stage in plan["stages"]] == ["stages/1-train", "stages/2-ask"]
    assert plan["stages"][1]["argv"] == ["ask", "8"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["tow"],
            "unknown job 'tow' (did you mean 'two'?)\n  where: {jobs}\n"
            "  next:  choose one of: gkd, grpo, holdem, sft, smoke, two, xdan",
        ),
        (["two", "--profile", "lern"], "job two has no profile 'lern'\n  next:  choose one of: learn"),
        (["two", "--set", "rounds"], "--set rounds: no '=' in it\n  next:  write --set NAME=VALUE"),
        (
            ["two", "--set", "rouds=3"],
            "--set rouds: not a parameter of job two (did you mean 'rounds'?)\n  next:  parameters: rounds",
        ),
        (["two", "--set", "rounds=x"], "--set rounds=x: must be a whole number: rounds"),
        (["two", "--set", "rounds=3", "--set", "rounds=10"], "parameter rounds is 10, and must be from 1 to 9: rounds"),
        (
            ["two", "--target", "min"],
            "unknown target 'min' (did you mean 'mine'?)\n  where: {images}\n  next:  choose one of: {targets}",
        ),
    ],
)
@pytest.mark.parametrize("dry", [True, False], ids=["dry", "real"])
@pytest.mark.allow("sockets")  # docker-py is imported, not asked
def test_words_that_cannot_be(rlbox: Rlbox, two: Folder, words: list[str], message: str, dry: bool) -> None:
    places = {name: f"{two.path}/{name} and {CHECKOUT}/{name}" for name in ("jobs", "images")}
    places["targets"] = ", ".join(two.project.targets())
    said = rlbox("run", *words, *(["--dry-run"] if dry else []))
    own = "" if "next:" in message else "\n  next:  rlbox show two tells what each parameter may be"
    verdict = "# verdict: this would be refused: 1 refusal, exit code 2\n" if dry else ""
    assert said == Said(code=2, out=verdict, err=f"rlbox: error: {message.format(**places)}{own}\n")


def test_an_unknown_place(rlbox: Rlbox, two: Folder) -> None:
    said = rlbox("run", "two", "--place", "there")
    assert (said.code, said.out) == (2, "")
    assert "'there' is not one of 'docker', 'here'" in said.err


def read_only(**_: object) -> None:
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
        lambda disk, patch: patch.setattr("tempfile.TemporaryFile", read_only),
    ),
    "full": (
        "the data disk is too full: 4.1 kB free, 3.2 GB (3 GiB) needed",
        "free space, or name another with --data DIR",
        lambda disk, patch: patch.setattr("rlbox.engine.data_disk.free_bytes", lambda path: 4096),
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
    assert rlbox("run", "two", "--data", str(disk), "--place", place) == Said(
        code=5, out="", err=f"rlbox: error: {what}\n  where: {disk}\n  next:  {next_step.format(disk=disk)}\n"
    )
    assert disk.exists() == (state != "missing")


@pytest.mark.parametrize("place", ["docker", "here"])
@pytest.mark.parametrize("named", ["/", "/etc", "/usr/lib/rlbox", "/var", "/home", "/dev/../proc/self"])
def test_a_folder_of_the_system_is_no_data_disk(rlbox: Rlbox, two: Folder, named: str, place: str) -> None:
    said = rlbox("run", "two", "--data", named, "--place", place, "--dry-run")
    assert said.code == 5
    assert "this folder is the system's own, and no data disk" in said.err + said.out


@pytest.mark.parametrize("named", ["/dev/shm/x", "/usr/local/x", "/run/media/me/disk", "/mnt", "/var/data", "/data"])
def test_a_folder_that_is_lent_may_be_one(named: str) -> None:
    assert str(choose_data_dir("~/disk", named)) == os.path.realpath(named)


@pytest.mark.allow("sockets")
def test_no_engine(rlbox: Rlbox, two: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{two.path}/no.sock")
    said = rlbox("run", "two", "--json")
    assert said.code == 4
    assert said.data["error"] == {
        "what": "no Docker engine answers",
        "where": f"unix://{two.path}/no.sock",
        "next": "rlbox engine up (starts one; as root it installs it where there is none); or without: --place here",
        "exit_code": 4,
    }
    assert not Path("~/disk/runs").expanduser().exists()


@pytest.mark.allow("sockets")
def test_an_engine_that_is_not_for_this_user(rlbox: Rlbox, two: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    said = rlbox("run", "two")
    assert said.code == 4
    assert said.err.startswith("rlbox: error: this user may not speak to the Docker engine\n")


@pytest.mark.allow("sockets")
def test_no_image(rlbox: Rlbox, two: Folder, engine: EngineSocket) -> None:
    assert rlbox("run", "two") == Said(
        code=4, out="", err="rlbox: error: the engine has no image rlbox/mine:tests\n  next:  rlbox build mine\n"
    )
    assert not Path("~/disk/runs").expanduser().exists()


@pytest.mark.allow("sockets")
def test_an_image_of_other_specs(rlbox: Rlbox, two: Folder, engine: EngineSocket) -> None:
    engine.images["rlbox/mine:tests"] = {"Id": "sha256:1", "Config": {"Labels": {"rlbox.build": "old"}}}
    assert rlbox("run", "two") == Said(
        code=4,
        out="",
        err="rlbox: error: the image rlbox/mine:tests is out of date: "
        "it was built by an rlbox that counted every line of its own code as part of the image\n"
        "  next:  rlbox build mine\n",
    )


@pytest.mark.allow("sockets")
def test_in_place_needs_a_lock(rlbox: Rlbox, two: Folder) -> None:
    (two.path / "images/mine/lock.json").unlink()
    assert rlbox("run", "two", "--place", "here") == Said(
        code=2,
        out="",
        err="rlbox: error: the lock of target mine is missing\n"
        "  where: images/mine/lock.json\n  next:  rlbox lock mine\n",
    )
