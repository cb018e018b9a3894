"""What is advised where the machine or what was written refuses is done: disks, scripts, facts, archives of apt."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import certifi
import pytest
from fakes import CHECKOUT, ON_IMAGE, TARGET, UV_WHEEL, Folder, Said, hold
from following import Follow
from test_cli_stack import WRITTEN, Way

from rlbox.artifacts.apt_lock import resolve_debs
from rlbox.errors import RlboxError
from rlbox.target.target import load_target

NOISE = "".join(f"# {number**9:x}\n" for number in range(1, 1500))
DEAD = "http://127.0.0.1:9"
APT = f'title = "mine"\n[[rule]]\nkind = "apt"\nprotocol = "archive"\nurl = "{DEAD}"\n'


@pytest.mark.allow("processes")
def test_a_disk_that_is_full(follow: Follow, folder: Folder, tmp_path: Path) -> None:
    folder.target("mine")
    folder.lock("mine")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        subprocess.run(["sh", "-c", f"cat /dev/zero > {disk}/old 2>/dev/null"], check=False)
        step = follow("export", "mine", "--to", "compose", "--output", f"{disk}/c.yaml")
        follow.instead(step, str(disk), str(tmp_path))
        (disk / "old").unlink()
        follow.again(step)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize(
    "added",
    [
        pytest.param(NOISE, id="long"),
        pytest.param("export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567\n", id="secret"),
    ],
)
def test_what_cannot_be_in_a_script_is_kept_on_the_disk(follow: Follow, folder: Folder, added: str) -> None:
    file = folder.write("added.sh", added)
    step = follow("onstart", "vast-5090", "--add", str(file))
    folder.write("disk/added.sh", added)
    file.write_text("set -a; . /data/.env; set +a; . /data/added.sh\n")
    follow.again(step)


def test_another_profile_is_included(follow: Follow, folder: Folder) -> None:
    file = folder.write("sources/mine.toml", 'title = "mine"\ninclude = "nosuch"\n')
    step = follow("mirrors", "--sources", "mine")
    file.write_text(file.read_text().replace("nosuch", step.choices()[0]))
    follow.again(step)


def test_a_fact_that_is_wrong_here_is_left_out(follow: Follow, folder: Folder) -> None:
    packages = '"torch==2.9.1", "sglang==0.5.12", "vllm==0.24.0"'
    path = folder.target("mine", WRITTEN.format(**Way(step="", old="", packages=packages)._asdict()))
    step = follow("lock", "mine")
    found = re.search(r"wrong here \((.*?)\) goes into (\[compat\.off\])", step.text)
    assert found, step.text
    facts = "".join(f'"{name}" = "not so here"\n' for name in found[1].split(", "))
    path.write_text(f"{path.read_text()}{found[2]}\n{facts}")
    follow.again(step, code=step.said.code)  # what else does not fit together has ways out


@pytest.mark.allow("processes", "sockets")
def test_a_machine_that_asks_apt(follow: Follow, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no apt first, then no address of the archive, then one at which nothing answers."""
    folder.target("mine", TARGET)
    base = load_target(folder.project, "mine").target.base
    line, rlbox = ("lock", "mine", "--sources", "mine"), follow.rlbox

    def asked(*archives: str) -> Said:
        try:
            resolve_debs(base, "x86_64-unknown-linux-gnu", dict.fromkeys(archives, DEAD), {}, "")
        except RlboxError as error:
            return Said(code=error.exit_code, out="", err=f"rlbox: error: {error}\n")
        return Said(code=0, out="", err="")

    whole = shutil.which
    with monkeypatch.context() as bare:
        bare.setattr("shutil.which", lambda name, **more: None if name == "apt-get" else whole(name, **more))
        follow.step(line, first := asked("debian"))
    follow.step(line, second := asked())
    step = follow.step(line, third := asked("debian"))
    assert len({first.err, second.err, third.err}) == 3
    folder.write("sources/mine.toml", APT)
    monkeypatch.setattr("rlbox.artifacts.locator.machine_archives", dict)
    follow.rlbox = rlbox
    (probe,) = step.commands({})
    assert re.search(r"apt +127\.0\.0\.1 +dead", follow.changed(step, [*probe, "--sources", "mine"], 1).out)


@pytest.mark.allow("processes")
def test_an_interpreter_of_the_sandbox_is_named(follow: Follow) -> None:
    def typed(*words: str) -> Said:
        argv = [sys.executable, "-m", "rlbox.sandbox", *words]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(CHECKOUT)}
        )
        return Said(code=done.returncode, out=done.stdout, err=done.stderr)

    follow.rlbox = typed
    step = follow("probe", "--python", "/nowhere/python3")
    follow.again(step, *step.options({}), "/usr/bin/python3")


@pytest.mark.allow("sockets", "processes")
def test_a_ca_bundle_is_named(follow: Follow, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.target("mine", ON_IMAGE + "[build]\nbake_ca = true\n")
    folder.lock("mine")
    hold(UV_WHEEL)
    step = follow("render", "mine", "--context", "out")
    file = folder.write("site.pem", Path(certifi.where()).read_text())
    (name,) = re.findall(r"with ([A-Z_]+)", step.text)
    monkeypatch.setenv(name, str(file))
    follow.again(step)
