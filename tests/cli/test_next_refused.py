"""What is advised where the machine or what was written refuses is done: disks, scripts, facts, archives of apt."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fakes import TARGET, Folder
from following import Follow
from test_cli_stack import OLD_COMPILER, WRITTEN, Way

NOISE = "".join(f"# {number**9:x}\n" for number in range(1, 1500))
APT = '[[rule]]\nkind = "apt"\nprotocol = "archive"\nurl = "http://127.0.0.1:9"\n'


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
    packages = '"openrlhf==0.8.3", "transformer-engine==2.16.1", "slime==0.2.2"'
    spec = WRITTEN.format(**Way(step="", old="", packages=packages, base=OLD_COMPILER)._asdict())
    path = folder.target("mine", spec.replace("sm_80", "sm_100"))
    step = follow("lock", "mine")
    path.write_text(path.read_text() + "[compat.off]\n")
    while found := re.search(r"wrong here \((.*?)\) goes into \[compat\.off\]", step.text):
        path.write_text(path.read_text() + "".join(f'"{name}" = "not so here"\n' for name in found[1].split(", ")))
        if follow.rlbox("stack", "mine").code == 0:
            break
        step = follow("lock", "mine")
    assert "fits together" in follow.changed(step, ["stack", "mine"], 0).out


@pytest.mark.allow("processes", "sockets")
def test_a_machine_that_asks_apt(
    follow: Follow, folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has no apt first, then no address of the archive, then one at which nothing answers."""
    monkeypatch.setattr("rlbox.sources.act.mirrors.machine_archives", dict)
    monkeypatch.setattr("rlbox.lock.act.relock.lock_places", lambda app, target, sources: sources)
    folder.target("mine", TARGET)
    profile = folder.write("sources/mine.toml", 'title = "mine"\n')
    whole = shutil.which
    with monkeypatch.context() as bare:
        bare.setattr("shutil.which", lambda name, **more: None if name == "apt-get" else whole(name, **more))
        step = follow("lock", "mine", "--sources", "mine")
    step = follow.step(step.typed, follow.again(step, code=5))
    profile.write_text(profile.read_text() + APT)
    step = follow.step(step.typed, follow.again(step, code=1))
    (probe,) = step.commands({})
    said = follow.changed(step, [*probe, "--sources", "mine"], 1)
    assert "127.0.0.1:9" in said.out
