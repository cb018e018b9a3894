"""What `rlbox doctor` advises of a shell is done, and then it finds it no more: the situations of `next_doctor.toml`.

Each is a place of its own, laid as `rlbox apply` lays one, in which the shell that the row describes types `rlbox
doctor`, then what the advice says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

import pytest
from following import Follow, findings

from rlbox.config.toml_files import load_toml
from rlbox.doctor.fix_checks import INSTALL_DIR_VARIABLE
from rlbox.system.gpu import GpuDriver

TABLE = load_toml(Path(__file__).with_name("next_doctor.toml"))
ROWS: list[dict[str, Any]] = TABLE["rows"]
ASKS = """#!/bin/bash
ask() {{ {says}
}}
case "$1" in */probe_gpu.py | */probe_allreduce.py) ask "${{1##*/}}"; exit 0 ;; esac
exec {python} "$@"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place with nothing wrong: a stack without packages, a data disk; the shell is in it."""
    for name in ("opt/rlbox/share", "disk", "home", "other"):
        (tmp_path / name).mkdir(parents=True)
    venv.EnvBuilder(symlinks=True).create(tmp_path / "opt/venv")
    monkeypatch.setenv(INSTALL_DIR_VARIABLE, str(tmp_path / "opt/rlbox"))
    monkeypatch.setenv("PATH", f"{tmp_path}/opt/venv/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("rlbox.doctor.checks.list_processes", lambda venv: ())  # of this whole machine
    return tmp_path


def lay(place: Path, row: dict[str, Any]) -> None:
    """Write what the place says of itself: `needs` of its target, and what is locked."""
    share, python = place / "opt/rlbox/share", f"{sys.version_info.major}.{sys.version_info.minor}"
    locked = [{"name": name, "version": version} for name, version in row.get("locked", {}).items()]
    for name, text in TABLE["stack"].items() if "torch" in row.get("locked", {}) else ():
        (packages(place) / name).parent.mkdir(exist_ok=True)
        (packages(place) / name).write_text(text)
    if "gpus" in row:
        program = place / "opt/venv/bin/python"
        program.rename(program.with_name("python-whole"))
        program.write_text(ASKS.format(says=row.get("says", WELL), python=f"{program}-whole"))
        program.chmod(0o755)
    needs = {"disk": {"mount": str(place / "disk"), "need_gib": 0.001}, **row.get("needs", {})}
    (share / "fixes.json").write_text(json.dumps({"target": "mine", "facts": needs}))
    (share / "lock.json").write_text(json.dumps({"python": python, "groups": [{"packages": locked}]}))


WELL = """echo '{"step": "driver", "ok": true, "count": 2}'"""
"""What the driver says of GPUs with which nothing is wrong."""


def packages(place: Path) -> Path:
    return place / f"opt/venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def shell(place: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Type a text into the shell, and go on with the environment that it has then."""
    words = ["bash", "-c", f"{{ {text}\n}} >&2 && env -0"]
    environ = {**os.environ, "P": str(place), "S": str(packages(place))}
    done = subprocess.run(words, cwd=place, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (text, done.stderr)
    became = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    for name in os.environ.keys() - became.keys():
        monkeypatch.delenv(name)
    for name, value in became.items():
        monkeypatch.setenv(name, value)


@pytest.mark.allow("processes", "sockets")
@pytest.mark.parametrize("row", ROWS, ids=[f"{row['finding']}{row.get('way', '')}" for row in ROWS])
def test_what_is_found_is_mended(
    row: dict[str, Any], follow: Follow, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "g++" in row["made"] and not shutil.which("g++"):
        pytest.skip("this machine has no C++ compiler")
    lay(place, row)
    monkeypatch.chdir(place)
    if "gpus" in row:
        driver = GpuDriver(present=True, devices=row["gpus"], cuda=(99, 0))
        monkeypatch.setattr("rlbox.doctor.container.probe_driver", lambda: driver)
    shell(place, row["made"], monkeypatch)
    said = follow.rlbox("doctor")
    step = follow.found(("doctor",), said, row["finding"])
    shell(place, row.get("done") or step.shell(), monkeypatch)
    assert row["finding"] not in findings(again := follow.rlbox("doctor")), again.out
    assert again.code <= said.code


@pytest.mark.allow("processes", "sockets")
def test_the_target_of_this_place_is_examined(follow: Follow, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(place, {})
    monkeypatch.chdir(place)
    follow.types(follow("doctor", "another"))


@pytest.mark.allow("processes", "sockets")
def test_what_waits_shows_where(follow: Follow, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that has cores to spare."""
    monkeypatch.setattr("rlbox.doctor.program._idle_s", lambda: time.monotonic() * (os.cpu_count() or 1))
    lay(place, {"locked": {"torch": "2.0"}})
    monkeypatch.chdir(place)
    whole = (packages(place) / "torch/__init__.py").read_text()
    (packages(place) / "torch/__init__.py").write_text(
        "import socket\nsocket.create_server(('127.0.0.1', 0)).accept()\n" + whole
    )
    typed = ("doctor", "--budget", "5")
    step = follow.found(typed, follow.rlbox(*typed), "torch-op-hangs")
    line = step.text.partition(" shows where")[0].replace(" 60 ", " 2 ")
    shown = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60).stderr
    assert 'torch/__init__.py", line 2 in <module>' in shown
    (packages(place) / "torch/__init__.py").write_text(whole)
    assert "torch-op-hangs" not in findings(follow.rlbox(*typed))
