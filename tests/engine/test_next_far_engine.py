"""What is advised of an engine on another machine is done: the engine is this machine's, reached through a tunnel.

The tunnel is a stand-in for ssh: it carries bytes between a socket of its own and the engine's, and ends as ssh does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from enginebox import Box
from following import Follow

FAR = "ssh://somebody@far.example"
SSH = """#!{python}
import os, socket, subprocess, sys, threading
key, pid = {key!r}, {pid!r}
if not os.path.exists(key):
    sys.exit("somebody@far.example: Permission denied (publickey).")
if "-L" not in sys.argv:
    os.execvp(sys.argv[3], sys.argv[3:])
open(pid, "w").write(str(os.getpid()))
near, far = sys.argv[sys.argv.index("-L") + 1].split(":")
listener = socket.socket(socket.AF_UNIX)
listener.bind(near)
listener.listen()
def copy(source, sink):
    while data := source.recv(65536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)
def serve():
    while True:
        here, there = listener.accept()[0], socket.socket(socket.AF_UNIX)
        there.connect(far)
        for ends in ((here, there), (there, here)):
            threading.Thread(target=copy, args=ends, daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
subprocess.run(["sh", "-c", sys.argv[-1]])
"""
LOSES = """#!/bin/sh
{docker} "$@"; code=$?
kill -9 $(cat {pid}); sleep 0.5
exit $code
"""
JOB = """
title = "one small stage"
target = "tiny"
[[stages]]
name = "only"
title = "does something"
command = ["true"]
limits = { total_s = 60, silence_s = 30 }
"""


@pytest.fixture
def programs(tiny: Box, tmp_path: Path) -> Path:
    """A folder in front of PATH with the stand-in, whose key is there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "key").touch()
    ssh = SSH.format(python=sys.executable, key=str(tmp_path / "key"), pid=str(tmp_path / "pid"))
    (folder / "ssh").write_text(ssh)
    (folder / "ssh").chmod(0o755)
    return folder


@pytest.fixture
def far(tiny: Box, follow: Follow, programs: Path) -> Box:
    """The project, whose engine is far."""
    tiny.job("one", JOB)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    made = replace(tiny, extra={"DOCKER_HOST": FAR, "PATH": path})
    follow.rlbox = made
    return made


def test_the_key_is_brought(far: Box, follow: Follow, tmp_path: Path) -> None:
    (tmp_path / "key").unlink()
    step = follow("runs", "--target", "tiny")
    assert "Permission denied (publickey)" in step.said.err
    (tmp_path / "key").touch()
    (line,) = re.findall(r"`(.*?)`", step.text)
    subprocess.run(line, shell=True, check=True, env=far.env(DOCKER_HOST=""), capture_output=True)
    follow.again(step)


def test_a_disk_is_named_by_its_whole_path(far: Box, follow: Follow) -> None:
    step = follow("runs", "--target", "tiny", "--data", "disk")
    follow.again(step, *step.options({})[:1], str(far.data))


def test_a_disk_is_made_over_there(far: Box, follow: Follow, tmp_path: Path) -> None:
    step = follow("runs", "--target", "tiny", "--data", str(tmp_path / "new"))
    follow.again(step, *step.options({"DIR": str(far.data)}))
    (tmp_path / "new").mkdir()
    follow.again(step)


def test_an_image_is_built_before_a_run(far: Box, follow: Follow) -> None:
    step = follow("run", "one", "--build", "--dry-run")
    follow.types(step)
    follow.changed(step, [word for word in step.typed if word != "--build"], 0)


def test_a_run_that_went_on_is_attached(far: Box, follow: Follow, programs: Path, tmp_path: Path) -> None:
    docker = programs / "docker"
    docker.write_text(LOSES.format(docker=shutil.which("docker"), pid=tmp_path / "pid"))
    docker.chmod(0o755)
    step = follow("run", "one")
    docker.unlink()
    said = follow.types(step)
    assert "passed" in said.err
