"""The fixture of a run directory, and the end of what a failing test leaves."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from following import Follow
from launched import Disk, Site
from supervised import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "run")
    yield made
    if made.supervisor and made.supervisor.poll() is None:
        made.supervisor.send_signal(signal.SIGKILL)
    for pid in made.marked():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def site(tmp_path: Path, follow: Follow) -> Iterator[Site]:
    """A project and a data disk, on which what is advised is typed; what it started ends with the test."""
    made = Site(tmp_path)
    follow.rlbox = made
    yield made
    made.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A data disk; what was started on it ends with the test."""
    made = Disk(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)
