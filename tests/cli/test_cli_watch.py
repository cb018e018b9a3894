"""`rlbox watch`: where the page is, that it ends with Ctrl-C, and what it says when it cannot be."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from fakes import CHECKOUT, Folder, Rlbox
from reportbox import write_run

pytestmark = pytest.mark.allow("processes", "sockets")


@pytest.fixture
def disk(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder.target("local")
    monkeypatch.setenv("RLBOX_DATA", str(tmp_path / "disk"))
    write_run(tmp_path / "disk/runs/holdem-1", samples=5, steps=5)
    return tmp_path / "disk"


def test_until_ctrl_c(disk: Path, folder: Folder) -> None:
    argv = [sys.executable, "-m", "rlbox", "watch", "--project", str(folder.path)]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT), "SSH_CONNECTION": "1"}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout
        address = process.stdout.readline().strip()
        port = address.rpartition(":")[2].strip("/")
        with urllib.request.urlopen(address, timeout=20) as answer:
            text = answer.read().decode()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert "holdem-1" in text
    assert 'data-live="page"' in text
    assert "connect-src 'self'" in text
    assert process.returncode == 0
    assert err.splitlines() == [
        "run holdem-1 is shown there until Ctrl-C",
        f"from your own machine: ssh -N -L {port}:127.0.0.1:{port} NAME, then the same address",
        "stopped showing run holdem-1",
    ]


def test_a_port_that_is_taken(rlbox: Rlbox, disk: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = rlbox("watch", "--port", str(taken.getsockname()[1]))
    assert said.code == 5
    assert "cannot listen on the port: Address already in use" in said.err
    assert "next:  name another with --port" in said.err
