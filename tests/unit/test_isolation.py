"""What tests/conftest.py keeps these folders from."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest


def test_no_process() -> None:
    with pytest.raises(AssertionError, match="uses a process"):
        subprocess.run(["true"], check=False)
    for start in (lambda: os.system("true"), os.fork, lambda: os.posix_spawnp("true", ["true"], {})):
        with pytest.raises(AssertionError, match="uses a process"):
            start()


def test_no_socket_and_no_engine() -> None:
    with pytest.raises(AssertionError, match="uses a socket"):
        socket.socket()
    with pytest.raises(ImportError):
        import docker  # noqa: F401


def test_no_settings_of_the_machine(tmp_path: Path) -> None:
    assert Path.home().is_relative_to(tmp_path.parent)
    assert os.environ["XDG_CACHE_HOME"].startswith(str(Path.home()))
    found = [name for name in os.environ if name.startswith(("DOCKER_", "PIP_", "UV_", "RLBOX_"))]
    assert found == ["RLBOX_PROJECT_NAME"]  # the tests' own, so that an image's name is the same everywhere


@pytest.mark.allow("processes")
def test_a_mark_allows() -> None:
    assert subprocess.run(["true"], check=False).returncode == 0
    with pytest.raises(AssertionError, match="uses a socket"):
        socket.socket()
