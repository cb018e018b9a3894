"""What is advised where an instance, or the way there, is the trouble; as in test_next_vast.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import test_next_vast as rented
from fakes import CHECKOUT, Folder, Said
from following import Follow
from test_next_vast import IMAGE, KEEPER, NUMBER, SSH
from vastbox import Platform

pytestmark = [pytest.mark.allow("sockets", "processes"), pytest.mark.usefixtures("tool", "platform")]
disk, platform = rented.disk, rented.platform
FETCH = ("vast", "fetch", f"{NUMBER}")
UP = ("vast", "up", "own", "--detach", "--instance", f"{NUMBER}")
TOOL = """#!/bin/sh
case $1 in
runs) state={state}; [ ! -e {disk}/ended ] || state=passed
    echo '{{"runs": [{{"run": "own-1", "state": "'$state'"}}]}}' ;;
ckpt) echo '{{"series": []}}' ;;
stop) [ "$*" = "stop own-1 --data {disk}" ] && touch {disk}/ended ;;
esac
"""
Breaks = Callable[[str, str], None]


@pytest.fixture
def tool(disk: Path) -> Callable[[str], None]:
    """Put a rlbox on the instance that only says what there is; its run is in a state."""

    def put(state: str) -> None:
        (disk / "opt/rlbox/bin/rlbox").write_text(TOOL.format(disk=disk, state=state))

    put("passed")
    return put


@pytest.fixture
def breaks(tmp_path: Path) -> Breaks:
    """Have ssh do something else where a command is like a pattern of the shell; with none it does all as it should."""

    def broken(pattern: str = "", does: str = "") -> None:
        case = f"case $last in {pattern}) {does} ;; esac\n" if pattern else ""
        (tmp_path / "bin/ssh").write_text(SSH.replace("exec", f"{case}exec"))

    return broken


def quoted(text: str) -> str:
    """Return the command between the marks."""
    found = re.search("`(.*)`", text)
    assert found, text
    return found[1]


def test_one_without_an_address_is_started(follow: Follow, platform: Platform) -> None:
    row = platform.instances[NUMBER]
    platform.instances[NUMBER] = {**row, "actual_status": "exited", "ssh_host": ""}
    step = follow("vast", "ssh", f"{NUMBER}", "true")
    platform.instances[NUMBER] = row | {"actual_status": "exited"}  # its start gives it one
    follow.types(step)
    follow.again(step)


@pytest.mark.parametrize("state", ["failed: step 3", "step 2"])
def test_the_log_of_an_on_start_script_is_read(
    follow: Follow,
    disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
) -> None:
    monkeypatch.setattr("rlbox.vast.instance.time.sleep", lambda seconds: None)
    (disk / "onstart.status").write_text(state)
    step = follow(*UP, "--timeout", "1")
    (disk / "onstart.log").write_text("why\n")
    follow.types(step)


def test_a_run_that_goes_on_there_is_ended(follow: Follow, tool: Callable[[str], None]) -> None:
    assert follow.rlbox(*UP).code == 0
    tool("running")
    step = follow(*UP, "--then", "stop")
    follow.types(step)
    follow.again(step)


def test_a_job_that_does_not_start_is_mended(follow: Follow, disk: Path, platform: Platform) -> None:
    keeper = disk / "opt/rlbox/bin/python"
    keeper.write_text('#!/bin/sh\necho "model.bin" >"$3/refused"\n')
    step = follow("vast", "up", "own", *IMAGE, "--detach", "--yes")
    keeper.write_text(KEEPER)
    before = dict(platform.instances)
    follow.again(step, *step.options({}))
    assert platform.instances.keys() == before.keys()  # none was rented beside it


def test_the_log_of_what_keeps_a_job_is_read(
    follow: Follow,
    disk: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rlbox.vast.instance._STARTED_S", 0.3)
    (disk / "opt/rlbox/bin/python").write_text("#!/bin/sh\n")
    follow.types(follow(*UP))


def test_what_an_instance_is_for_is_written_again(follow: Follow, disk: Path) -> None:
    """The keeper of an instance whose file was damaged says so in its log."""
    assert follow.rlbox(*UP).code == 0
    stay = disk / ".rlbox-up/stay.json"
    whole = stay.read_text()
    stay.write_text(whole[:20])
    keeper = [sys.executable, "-m", "rlbox.vast", str(stay.parent)]
    done = subprocess.run(keeper, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(CHECKOUT)})
    step = follow.step(keeper, Said(code=done.returncode, out=done.stdout, err=done.stderr))
    rented.ends(disk, "passed", 0)
    follow.types(step, JOB="own", NUMBER=f"{NUMBER}")
    assert stay.read_text() == whole


def test_what_is_no_spec_is_brought_as_data(
    follow: Follow,
    folder: Folder,
    platform: Platform,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is known before anything is rented."""
    monkeypatch.setattr("rlbox.vast.instance._MOST_PROJECT", 2000)
    big = folder.write("jobs/data.txt", "x" * 2000)
    step = follow("vast", "up", "own", *IMAGE, "--detach", "--yes")
    assert list(platform.instances) == [NUMBER]
    big.rename(folder.path / "data.txt")
    follow.again(step, *step.options({"PATH": "data.txt"}))


def test_more_room_or_another_folder(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.ssh.download.free_bytes", lambda path: 1 << 40 if path.name == "other" else 0)
    step = follow(*FETCH)
    follow.again(step, *step.options({"DIR": "other"}))


def test_a_disk_that_is_full_gets_room(follow: Follow, folder: Folder) -> None:
    plan = folder.path / f"vast-{NUMBER}/runs/own-1/plan.json.part"
    plan.parent.mkdir(parents=True)
    plan.symlink_to("/dev/full")
    step = follow(*FETCH)
    plan.unlink()
    follow.again(step)


@pytest.mark.parametrize(("does", "typed"), [
    ("echo cut >&2; exit 1", FETCH),
    ("yes | head -c 99999; exit 0", FETCH),
    ("echo; exit 0", (*UP, "--data", "text.txt")),
], ids=["cut", "changed", "sent"])  # fmt: skip
def test_the_same_is_typed_again(
    follow: Follow, folder: Folder, breaks: Breaks, does: str, typed: tuple[str, ...]
) -> None:
    folder.write("text.txt", "42\n")
    breaks("*sha256sum*" if "--data" in typed else '*"tail -c"*|*".ljust("*', does)
    step = follow(*typed)
    breaks("", "")
    follow.again(step)


def test_a_machine_is_looked_at(follow: Follow, breaks: Breaks) -> None:
    breaks("*python3*", "echo no such program >&2; exit 127")
    step = follow(*FETCH)
    assert subprocess.run(f"{quoted(step.text)} true", shell=True, check=False).returncode == 0
    breaks("", "")
    follow.again(step)


def test_ssh_is_made_to_work(follow: Follow, breaks: Breaks) -> None:
    breaks("*", "echo Permission denied >&2; exit 255")
    step = follow(*FETCH)
    assert subprocess.run(quoted(step.text), shell=True, check=False, capture_output=True).returncode == 255
    breaks("", "")
    subprocess.run(quoted(step.text), shell=True, check=True)
    follow.again(step)


def test_the_client_of_ssh_is_installed(
    follow: Follow, tmp_path: Path, breaks: Breaks, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as bare:
        bare.setenv("PATH", str(tmp_path / "nothing"))
        step = follow(*FETCH)
    follow.again(step)


def test_what_is_on_the_disk_is_brought(follow: Follow) -> None:
    step = follow(*FETCH, "--only", "/etc/passwd")
    follow.instead(step, "/etc/passwd", f"{step.text.rpartition(' ')[2]}/runs/own-1")
