"""What is advised where a disk fails is done: one on which every operation is an error, one that never answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from failingdisk import failing_disk
from fakes import CHECKOUT, Folder, Said
from following import Follow, findings

pytestmark = pytest.mark.allow("processes", "sockets")


@pytest.fixture
def disk(follow: Follow, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it is mounted; all is typed in processes of their own, whose threads may wait for it for ever."""
    folder.target("mine")
    folder.lock("mine")
    for name in ("disk", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    follow.rlbox = apart
    return tmp_path / "disk"


def apart(*typed: str) -> Said:
    argv = [sys.executable, "-m", "rlbox", *typed]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    return Said(code=done.returncode, out=done.stdout, err=done.stderr)


def test_a_file_goes_to_a_disk_without_errors(follow: Follow, disk: Path) -> None:
    with failing_disk(disk, "errors"):
        step = follow("export", "mine", "--to", "compose", "--output", f"{disk}/c.yaml")
        follow.instead(step, f"{disk}/", f"{disk.parent}/other/")


def test_a_data_disk_without_errors_is_named(follow: Follow, disk: Path) -> None:
    typed = ("doctor", "--data", str(disk))
    with failing_disk(disk, "errors"):
        step = follow.found(typed, follow.rlbox(*typed), "data-disk-broken")
        again = follow.rlbox(*(word.replace("/disk", "/other") for word in step.typed))
    assert "data-disk-broken" not in findings(again)


def test_a_network_disk_whose_server_is_away_is_taken_off(follow: Follow, disk: Path) -> None:
    typed = ("doctor", "--data", str(disk))
    with failing_disk(disk, "silence"):
        step = follow.found(typed, follow.rlbox(*typed), "data-disk-slow")
        found = re.search(r"umount .*", step.text)
        assert found
        subprocess.run(found[0], shell=True, check=True)
        assert "data-disk-slow" not in findings(follow.rlbox(*typed))
