"""An instance of vast.ai that is a folder of this machine: a recorded account, and an ssh that is a shell here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import CHECKOUT, JOB, Folder
from reportbox import write_run
from vastbox import KEY, Platform, recorded, serving

SSH = """#!/bin/sh
for word in "$@"; do last=$word; done
exec sh -c "$last"
"""
TOOL = f"""#!/bin/sh
PYTHONPATH={CHECKOUT} exec {sys.executable} -m rlbox "$@"
"""
KEEPER = """#!/bin/sh
echo own-1 >"$3/run"
"""
NUMBER = 20000001


@pytest.fixture
def instance(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data disk of the instance, with a run; the project has a target whose disk it is, and a job."""
    disk = tmp_path / "workspace"
    for path, text in {
        disk / "opt/rlbox/bin/rlbox": TOOL,
        disk / "opt/rlbox/bin/python": KEEPER,
        tmp_path / "bin/ssh": SSH,
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (disk / "onstart.status").write_text("ready")
    write_run(disk / "runs/own-1", samples=2, steps=2)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    folder.target("rented", f'include = "vast-5090"\n[disk]\nmount = "{disk}"\n')
    folder.job("own", JOB.replace('"mine"', '"rented"'))
    return disk


@pytest.fixture
def platform(instance: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """An account with one instance, which runs."""
    row = {**recorded("instance"), "id": NUMBER, "label": "rlbox-rented own"}
    with serving(Platform(instances={NUMBER: row})) as served:
        monkeypatch.setenv("VAST_API_KEY", KEY)
        monkeypatch.setenv("VAST_URL", served.url)
        for name in ("api", "instance"):
            monkeypatch.setattr(f"rlbox.vast.{name}._POLL_S", 0.01)
        monkeypatch.setattr("rlbox.vast.instance._HAS_IMAGE", "true")  # this machine gets no other rlbox
        monkeypatch.setattr("rlbox.fixes.catalogue.load_fix_catalogue", lambda project: ())
        monkeypatch.setattr("rlbox.vast.rental.require_published_or_report_unchecked", lambda app, image: None)
        yield served
