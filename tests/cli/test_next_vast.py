"""What `rlbox vast` advises of an instance is done: a recorded account, an instance that is a folder of this machine.

Whoever asks it by ssh is answered by a shell of this machine, with this rlbox.
"""

from __future__ import annotations

import os
import signal
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import CHECKOUT, JOB, Folder
from following import Follow
from reportbox import write_run
from vastbox import KEY, Platform, recorded, serving

from rlbox.app import own_requirements
from rlbox.config.project import Project
from rlbox.fixes.catalogue import load_fixed_target
from rlbox.target.lock import load_lock, lock_checksum

pytestmark = pytest.mark.allow("sockets", "processes")
IMAGE = ("--image", "registry.example/me/rented:1")
SSH = """#!/bin/sh
for word in "$@"; do last=$word; done
exec sh -c "$last"
"""
TOOL = f"""#!/bin/sh
PYTHONPATH={CHECKOUT} exec {sys.executable} -m rlbox "$@"
"""
KEEPER = """#!/bin/sh
echo own-1 >"$3/run"
"""
NUMBER = 20000001


class Interrupting(list[str]):
    """States of an instance, of which somebody presses Ctrl-C when he has seen the first."""

    def pop(self, at: int = -1) -> str:  # type: ignore[override]
        os.kill(os.getpid(), signal.SIGINT)
        return super().pop(at)


@pytest.fixture
def disk(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data disk of the instance, with a run; the project has a target whose disk it is, and a job."""
    disk = tmp_path / "workspace"
    for path, text in {
        disk / "opt/rlbox/bin/rlbox": TOOL,
        disk / "opt/rlbox/bin/python": KEEPER,
        tmp_path / "bin/ssh": SSH,
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (disk / "onstart.status").write_text("ready")
    write_run(disk / "runs/own-1", samples=2, steps=2)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    folder.target("rented", f'include = "vast-5090"\n[disk]\nmount = "{disk}"\n')
    folder.job("own", JOB.replace('"mine"', '"rented"'))
    return disk


@pytest.fixture
def platform(disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """An account with one instance, which runs."""
    row = {**recorded("instance"), "id": NUMBER, "label": "rlbox-rented own"}
    with serving(Platform(instances={NUMBER: row})) as served:
        monkeypatch.setenv("VAST_API_KEY", KEY)
        monkeypatch.setenv("VAST_URL", served.url)
        for name in ("account", "instance"):
            monkeypatch.setattr(f"rlbox.vast.{name}._POLL_S", 0.01)
        monkeypatch.setattr("rlbox.vast.instance._HAS_IMAGE", "true")  # this machine gets no other rlbox
        monkeypatch.setattr("rlbox.fixes.catalogue.load_fixes", lambda project: ())
        monkeypatch.setattr("rlbox.cli.vast_instances.require_published", lambda app, image: None)
        yield served


def test_one_that_was_stopped_is_started(follow: Follow, platform: Platform) -> None:
    follow.types(follow("vast", "stop", f"{NUMBER}"))
    assert platform.instances[NUMBER]["actual_status"] == "running"


def test_what_goes_on_is_looked_at(follow: Follow, platform: Platform) -> None:
    follow.rlbox("vast", "stop", f"{NUMBER}")
    follow.types(follow("vast", "start", f"{NUMBER}"))


def test_what_is_at_home_may_be_destroyed(follow: Follow, platform: Platform) -> None:
    follow.rlbox("vast", "stop", f"{NUMBER}")
    step = follow("vast", "destroy", f"{NUMBER}", "--yes")
    for nth in (0, 1):
        follow.types(step, nth)
    follow.again(step)
    assert platform.instances == {}


def test_what_was_not_brought_may_be_lost(follow: Follow, platform: Platform) -> None:
    step = follow("vast", "destroy", f"{NUMBER}", "--yes")
    follow.again(step, *step.options({}))
    assert platform.instances == {}


def test_what_was_brought_is_looked_at_and_the_rest_destroyed(follow: Follow, platform: Platform) -> None:
    step = follow("vast", "fetch", f"{NUMBER}")
    assert "own-1" in follow.types(step).out
    follow.changed(step, [*step.commands({})[1], "--yes"], 0)
    assert platform.instances == {}


def test_one_that_is_listed_still(follow: Follow, platform: Platform) -> None:
    def list_still(row: dict[str, object]) -> None:
        platform.instances[NUMBER] = row

    platform.on_destroy = list_still
    step = follow("vast", "destroy", f"{NUMBER}", "--unfetched", "--yes")
    platform.instances.clear()
    assert follow.types(step).out == "no instance\n"


def test_one_that_nobody_waited_for_is_destroyed(follow: Follow, platform: Platform) -> None:
    platform.states = Interrupting(["loading"])
    step = follow("vast", "create", "rented", *IMAGE, "--yes")
    follow.changed(step, [*step.commands({})[0], "--yes"], 0)
    assert list(platform.instances) == [NUMBER]


def test_one_whose_beginning_was_cut_is_destroyed(follow: Follow, platform: Platform, disk: Path) -> None:
    pressed = disk.parent / "bin/ssh"  # Ctrl-C, when it is asked whether it is ready
    pressed.write_text(SSH.replace("exec", f"case $last in *onstart*) kill -INT {os.getpid()}; esac\nexec"))
    step = follow("vast", "up", "own", *IMAGE, "--yes")
    pressed.write_text(SSH)
    (made,) = platform.instances.keys() - {NUMBER}
    follow.rlbox("vast", "fetch", f"{made}")
    follow.changed(step, [*step.commands({})[0], "--yes"], 0)
    assert list(platform.instances) == [NUMBER]


def test_what_was_begun_is_followed_brought_and_destroyed(follow: Follow, platform: Platform) -> None:
    step = follow("vast", "up", "own", *IMAGE, "--detach", "--yes")
    for nth in (0, 1):
        follow.types(step, nth)
    follow.changed(step, [*step.commands({})[2], "--yes"], 0)
    assert list(platform.instances) == [NUMBER]


def ends(disk: Path, state: str, code: int) -> None:
    """Have the run end at once: the keeper says so."""
    told = f'{{"run": "own-1", "state": "{state}", "exit_code": {code}, "cause": ""}}'
    (disk / "opt/rlbox/bin/python").write_text(f"{KEEPER}echo '{told}' >\"$3/ended.json\"\n")


def test_what_was_run_is_fetched_looked_at_and_destroyed(follow: Follow, platform: Platform, disk: Path) -> None:
    ends(disk, "passed", 0)
    step = follow("vast", "up", "own", *IMAGE, "--yes")
    assert (step.said.code, "own-1  passed" in step.said.out) == (0, True), step.said.err
    follow.types(step)
    follow.changed(step, [*step.commands({})[1], "--yes"], 0)
    assert list(platform.instances) == [NUMBER]


def test_a_run_that_failed_there_is_fetched_too(follow: Follow, platform: Platform, disk: Path) -> None:
    ends(disk, "failed", 1)
    said = follow.rlbox("vast", "up", "own", *IMAGE, "--yes", "--json")
    assert (said.code, said.data["state"]) == (1, "failed"), said.err
    assert (Path(said.data["folder"]) / "runs/own-1/run.json").is_file()


def test_a_run_that_is_left_goes_on(follow: Follow, platform: Platform, disk: Path) -> None:
    pressed = disk.parent / "bin/ssh"  # Ctrl-C, while it is followed
    pressed.write_text(SSH.replace("exec", f"case $last in *followed*) kill -INT {os.getpid()}; esac\nexec"))
    step = follow("vast", "up", "own", *IMAGE, "--yes")
    pressed.write_text(SSH)
    assert step.said.code == 130
    for nth in (0, 1):
        follow.types(step, nth)
    follow.changed(step, [*step.commands({})[2], "--yes"], 0)
    assert list(platform.instances) == [NUMBER]


def test_one_that_was_stopped_under_way_is_started(follow: Follow, platform: Platform, disk: Path) -> None:
    def stop(row: dict[str, object]) -> None:
        row["intended_status"] = "stopped"

    platform.on_create = stop
    broken = disk.parent / "bin/ssh"
    broken.write_text(SSH.replace("exec", "case $last in *followed*) exit 255; esac\nexec"))
    step = follow("vast", "up", "own", *IMAGE, "--yes")
    broken.write_text(SSH)
    for nth in (0, 1):
        follow.types(step, nth)


def test_a_connection_that_breaks_is_made_again(follow: Follow, platform: Platform, disk: Path) -> None:
    ends(disk, "passed", 0)
    once = f"*followed*) [ -e {disk}/broke ] || {{ touch {disk}/broke; exit 255; }}"
    (disk.parent / "bin/ssh").write_text(SSH.replace("exec", f"case $last in {once} ;; esac\nexec"))
    said = follow.rlbox("vast", "up", "own", *IMAGE, "--yes", "--json")
    assert (said.code, said.data["state"]) == (0, "passed"), said.err
    assert "connecting again" in said.err


def test_without_an_image_rlbox_is_sent(
    follow: Follow, platform: Platform, disk: Path, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a plain CUDA image, whose on-start script waits for it."""
    project = Project(folder=folder.path)
    lock = load_lock(project.lock_file("vast-5090"))
    assert lock
    spec = lock_checksum(load_fixed_target(project, "rented").target, own_requirements())
    folder.write("images/rented/lock.json", replace(lock, target="rented", spec=spec).text())
    monkeypatch.setattr("rlbox.vast.instance._HAS_IMAGE", "false")
    (disk / "onstart.status").write_text("waiting for rlbox")
    ready = f"case $last in echo*sent.sha256) echo ready >{disk}/onstart.status; esac\nexec"
    (disk.parent / "bin/ssh").write_text(SSH.replace("exec", ready))
    ends(disk, "passed", 0)
    dry = follow.rlbox("vast", "up", "own", "--dry-run")
    assert "image    nvidia/cuda:" in dry.out
    assert "setup    rlbox is sent over ssh; it installs" in dry.out
    said = follow.rlbox("vast", "up", "own", "--yes", "--json")
    assert (said.code, said.data["state"]) == (0, "passed"), said.err
    (created,) = [body for body in platform.calls("PUT") if "image" in body]
    assert created["image"].startswith("nvidia/cuda:")
    (wheel,) = (disk / ".rlbox-up").glob("rlbox-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"rlbox/cli/__init__.py", "rlbox/_shipped/jobs/sft.toml", "rlbox/artifacts/profiles/cn.toml"} <= set(names)
    assert (disk / ".rlbox-up/project/images/rented/lock.json").is_file()
    again = follow.rlbox("vast", "up", "own", "--yes", "--json", "--instance", str(said.data["instance"]))
    assert again.code == 0, again.err
    assert "sending rlbox" not in again.err  # it is there, and the same


def test_files_that_are_not_there_are_named_otherwise(follow: Follow, platform: Platform, folder: Folder) -> None:
    folder.write("text.txt", "42\n")
    step = follow("vast", "up", "own", *IMAGE, "--data", "nothing.txt", "--dry-run")
    follow.instead(step, "nothing.txt", "text.txt")
    step = follow("vast", "up", "own", *IMAGE, "--env-file", "nothing.env", "--dry-run")
    folder.write("my.env", "HF_TOKEN=abcdefgh12345678\n")
    follow.instead(step, "nothing.env", "my.env")


def test_a_file_of_secrets_that_cannot_be_read(follow: Follow, platform: Platform, folder: Folder) -> None:
    """It is known before anything is rented."""
    folder.write("my.env", "HF_TOKEN=abcdefgh12345678\n")
    step = follow("vast", "up", "own", *IMAGE, "--detach", "--env-file", "/proc/self/mem", "--yes")
    assert list(platform.instances) == [NUMBER]
    follow.instead(step, "/proc/self/mem", "my.env")


def test_secrets_are_given(follow: Follow, platform: Platform, folder: Folder) -> None:
    folder.job("own", 'secrets = ["HF_TOKEN"]\n' + JOB.replace('"mine"', '"rented"') + 'secrets = ["HF_TOKEN"]\n')
    step = follow("vast", "up", "own", *IMAGE, "--dry-run")
    folder.write("my.env", "HF_TOKEN=abcdefgh12345678\n")
    follow.again(step, *step.options({"FILE": "my.env"}))


def test_a_notice_goes_to_an_address_or_a_command(follow: Follow, platform: Platform) -> None:
    step = follow("vast", "up", "own", *IMAGE, "--notify", "ftp://example.org/x", "--dry-run")
    follow.instead(step, "ftp://example.org/x", step.form({"HOST": "example.org", "PATH": "x"}))
    follow.instead(step, "ftp://example.org/x", "mail -s over me@example.org")
