"""What the shipped check of leftovers names: an orphan of this network, and none of another one, as of a container."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.config.toml_files import load_toml

CHECK = load_toml(CHECKOUT / "templates/fixes/stale-processes-hold-port.toml")["check"]["run"]


def orphan(folder: Path, name: str, *before: str) -> int:
    """Start a process that calls itself a part of Ray and loses its parent, and return its number."""
    note = folder / "pid"
    program = f"echo $$ >{note}.new; mv {note}.new {note}; exec -a raylet sleep 120"
    words = " ".join(["setsid", *before, "bash", "-c", f"'{program}'"])
    subprocess.run(["sh", "-c", f"({words} >/dev/null 2>&1 &)"], check=True)
    while not note.exists():
        time.sleep(0.02)
    found = int(note.read_text())
    note.rename(folder / name)
    while Path(f"/proc/{found}/cmdline").read_bytes().partition(b"\0")[0] != b"raylet":
        time.sleep(0.02)
    return found


@pytest.fixture
def orphans(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """An orphan here, and one with a network of its own."""
    made = orphan(tmp_path, "here"), orphan(tmp_path, "elsewhere", "unshare", "--user", "--map-root-user", "--net")
    yield made
    for pid in made:
        os.kill(pid, 9)


def test_an_orphan_of_this_network_is_named_and_no_other(orphans: tuple[int, int]) -> None:
    done = subprocess.run(["sh", "-c", CHECK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"process {orphans[0]} (raylet of " in done.stdout
    assert str(orphans[1]) not in done.stdout
