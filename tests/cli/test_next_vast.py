"""What `rlbox vast` advises of an instance is done: a recorded account, an instance that is a folder of this machine.

Whoever asks it by ssh is answered by a shell of this machine, with this rlbox.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import CHECKOUT, JOB, Folder
from following import Follow
from reportbox import write_run
from vastbox import KEY, Platform, recorded, serving

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
            monkeypatch.setattr(f"rlbox.vast.act.{name}._POLL_S", 0.01)
        monkeypatch.setattr("rlbox.fixes.load.load_fixes", lambda project: ())
        monkeypatch.setattr("rlbox.cli.rented.published.require_published", lambda app, image: None)
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
    step = follow("vast", "up", "own", *IMAGE, "--yes")
    for nth in (0, 1):
        follow.types(step, nth)
    follow.changed(step, [*step.commands({})[2], "--yes"], 0)
    assert list(platform.instances) == [NUMBER]


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
    step = follow("vast", "up", "own", *IMAGE, "--env-file", "/proc/self/mem", "--yes")
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
