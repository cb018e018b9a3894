"""A dry run is a plan: the real path to the first side effect, all that is in its way, and nothing changed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT, ON_IMAGE, UV_WHEEL, EngineSocket, Folder, Rlbox, hold
from test_cli_run import JOB, PORT, current_image

from rlbox.provision.provision import StageEnvironment
from rlbox.record.disk_lock import LockOwner, acquire_disk_lock
from rlbox.system.files import cache_path

pytestmark = pytest.mark.allow("sockets", "processes")
TAG = "rlbox/mine:tests"
HOST = ON_IMAGE.replace("[disk]", '[run]\nnetwork = "host"\n[disk]')


@pytest.fixture
def two(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A project with a job of two stages, a data disk, and a docker client that nobody may start."""
    folder.target("mine", HOST)
    folder.lock("mine")
    folder.job("two", JOB)
    hold(UV_WHEEL)
    (tmp_path / "disk").mkdir()
    for program in (tmp_path / "bin/docker", tmp_path / "config/cli-plugins/docker-buildx"):
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\ntouch {tmp_path}/disk/started\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.defpath}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("RLBOX_DATA", str(tmp_path / "disk"))
    return folder


@pytest.fixture
def ready(two: Folder, engine: EngineSocket) -> EngineSocket:
    """An engine with the image of the job's target, as its specs say now."""
    engine.images[TAG] = current_image(two)
    return engine


def verdict(rlbox: Rlbox, *words: str) -> Any:
    """Return the verdict of a dry run, whose exit code is that of the command."""
    said = rlbox(*words, "--dry-run", "--json")
    assert said.data["verdict"]["exit_code"] == said.code
    return said.data["verdict"]


def refusals(rlbox: Rlbox, *words: str) -> list[tuple[str, int]]:
    """Return what a dry run says would be refused, and with which code."""
    return [(row["what"], row["exit_code"]) for row in verdict(rlbox, *words)["refused"]]


@contextmanager
def listening(port: int) -> Iterator[None]:
    """Listen on a port of this machine."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        yield


def no_image(two: Folder, engine: EngineSocket, disk: Path) -> None:
    engine.images.clear()


def old_image(two: Folder, engine: EngineSocket, disk: Path) -> None:
    engine.images[TAG] = {"Id": "sha256:1", "Config": {"Labels": {}}}


def no_create(two: Folder, engine: EngineSocket, disk: Path) -> None:
    two.target("mine", HOST.replace("create = true", "create = false"))
    two.lock("mine")
    engine.images[TAG] = current_image(two)
    disk.rmdir()


def a_secret(two: Folder, engine: EngineSocket, disk: Path) -> None:
    text = JOB.replace('title = "learns"\n', 'title = "learns"\nsecrets = ["TOKEN_OF_MINE"]\n')
    two.job("two", 'secrets = ["TOKEN_OF_MINE"]\n' + text)


def a_device(two: Folder, engine: EngineSocket, disk: Path) -> None:
    two.target("mine", HOST.replace("[disk]", '[run.devices]\n"/dev/no-such-adapter" = "rw"\n[disk]'))
    two.lock("mine")
    engine.images[TAG] = current_image(two)


SITUATIONS: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "no such stage": (lambda *all: None, ("--from", "nosuch")),
    "a stage that has not passed": (lambda *all: None, ("--from", "ask")),
    "no such GPU": (lambda *all: None, ("--gpus", "banana")),
    "GPUs that nobody has": (lambda *all: None, ("--gpus", "64")),
    "no such port": (lambda *all: None, ("--publish", "nosuch")),
    "a disk that is gone": (no_create, ()),
    "no image": (no_image, ()),
    "an old image": (old_image, ()),
    "no secret": (a_secret, ()),
    "no device": (a_device, ()),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_first_refusal_is_that_of_the_real_run(
    rlbox: Rlbox, two: Folder, ready: EngineSocket, tmp_path: Path, situation: str
) -> None:
    make, more = SITUATIONS[situation]
    make(two, ready, tmp_path / "disk")
    ready.answers["/info"] = 200, b"{}"
    found = verdict(rlbox, "run", "two", *more)["refused"]
    real = rlbox("run", "two", *more, "--json")
    assert real.data["error"] == found[0]
    assert (real.code, ready.made) == (found[0]["exit_code"], [])
    assert len(found) == 1 or situation.startswith("GPUs"), found  # a machine without a driver has that in its way too


def test_all_that_is_wrong_is_said_at_once(rlbox: Rlbox, two: Folder, ready: EngineSocket, tmp_path: Path) -> None:
    no_create(two, ready, tmp_path / "disk")
    a_secret(two, ready, tmp_path / "disk")
    no_image(two, ready, tmp_path / "disk")
    with listening(PORT):
        said = rlbox("run", "two", "--from", "nosuch", "--gpus", "banana", "--publish", "nosuch", "--dry-run")
    lines = said.out.splitlines()
    assert [
        line.removeprefix("# refused: ").partition("; looked in")[0] for line in lines if "# refused: " in line
    ] == [
        "secret TOKEN_OF_MINE is missing",
        "invalid --gpus 'banana'",
        "there is no such data disk",
        f"the engine has no image {TAG}",
        "no service of job two has the port 'nosuch'",
        "job two has no stage 'nosuch'",
        f"port {PORT} (http) is taken by {Path('/proc/self/comm').read_text().strip()} (pid {os.getpid()})",
    ]
    assert lines[-1] == "# verdict: this would be refused: 7 refusals, exit code 2"
    assert "/opt/venv/bin/python train.py 'two words'" in lines
    assert said.code == 2


def test_a_port_that_is_taken(
    rlbox: Rlbox, two: Folder, ready: EngineSocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a network of its own nobody else's port matters."""
    place = StageEnvironment(python=Path("/usr/bin/python3"), argv_prefix=(), env={})
    with listening(PORT):
        ((what, code),) = refusals(rlbox, "run", "two")
        assert what.startswith(f"port {PORT} (http) is taken by ")
        monkeypatch.setattr("rlbox.run.host.provision_stage_environment", lambda *words: place)
        assert refusals(rlbox, "run", "two", "--place", "here") == [(what, code)]
        real = rlbox("run", "two", "--place", "here")
        assert (real.code, what in real.err) == (code, True)
        two.target("mine", ON_IMAGE)
        two.lock("mine")
        ready.images[TAG] = current_image(two)
        assert refusals(rlbox, "run", "two") == []


def test_a_disk_that_another_run_has(rlbox: Rlbox, two: Folder, ready: EngineSocket, tmp_path: Path) -> None:
    held = acquire_disk_lock(
        tmp_path / "disk", LockOwner(run="other-1", job="other", user="me", uid=1, host="h", since="then")
    )
    ((what, code),) = refusals(rlbox, "run", "two")
    held.close_own_handle()
    assert (what, code) == ("run other-1 has the data disk: job other, started by me (uid 1) on h, since then", 8)
    assert refusals(rlbox, "run", "two") == []


def test_in_place_the_paths_are_those_of_this_machine(
    rlbox: Rlbox, two: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = rlbox("run", "two", "--place", "here", "--dry-run")
    place, disk = cache_path("places/mine"), tmp_path / "disk"
    assert f"{place}/opt/venv/bin/python train.py 'two words'" in said.out.splitlines()
    assert f"#   gate: file {disk}/runs/two-DRY-RUN/out" in said.out.splitlines()
    assert f"# first: {place} is brought to the lock of target mine: " in said.out
    assert "# not checked: sources direct: a dry run asks no network\n" in said.out
    assert said.code == 0
    monkeypatch.setenv("RLBOX_SOURCES", "cn")
    assert "# not checked: sources cn: " in rlbox("run", "two", "--place", "here", "--dry-run").out
    monkeypatch.setenv("RLBOX_SOURCES", "nosuch")
    assert "refused: unknown sources profile 'nosuch'" in rlbox("run", "two", "--build", "--dry-run").out


def test_an_engine_that_does_not_answer_is_no_refusal(
    rlbox: Rlbox, two: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{two.path}/no.sock")
    found = verdict(rlbox, "run", "two", "--gpus", "2")
    why = f"cannot connect to Docker (unix://{two.path}/no.sock)"
    assert found["not_checked"] == [{"what": ["image", "GPUs", "network"], "why": why}]


def test_an_engine_on_another_machine_starts_nothing(
    rlbox: Rlbox, two: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real command goes on in a container there."""
    program = tmp_path / "bin/ssh"
    program.write_text("#!/bin/sh\necho no way >&2; exit 255\n")
    program.chmod(0o755)
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@far")
    found = verdict(rlbox, "run", "two")
    assert found["not_checked"] == [
        {
            "what": ["data disk", "memory", "ports"],
            "why": "the engine is at ssh://me@far, where a dry run starts nothing",
        }
    ]
    assert [row["what"] for row in found["refused"]] == [
        "the engine cannot be reached over ssh: ssh to me@far failed: no way"
    ]
    found = verdict(rlbox, "run", "--resume", "some")
    assert (found["would"], found["not_checked"][0]["what"]) == ("look for run some", ["run some"])


@pytest.mark.usefixtures("as_declared", "remembering")
def test_the_example_of_the_guide_is_what_is_said(rlbox: Rlbox) -> None:
    guide = (CHECKOUT / "docs/runs.md").read_text(encoding="utf-8")
    command, _, *lines = guide.partition("```text\n$ rlbox ")[2].partition("```")[0].splitlines()
    said = rlbox(*command.split())
    assert (said.code, said.out.splitlines()[-len(lines) :]) == (2, lines)
