"""Stand-ins that behave like the thing and refuse what it would refuse; values that many tests start from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlbox.plan.image import ContainerDefaults, ImagePlan
from rlbox.spec.project import Project

CHECKOUT = Path(__file__).resolve().parents[1]
CASES = Path(__file__).resolve().parent / "cases"

TARGET = """
title = "smallest target"
[base]
bootstrap = "debian:bookworm"
[[stack]]
name = "tools"
packages = ["six==1.16.0"]
[disk]
host = "~/disk"
create = true
"""

JOB = """
title = "smallest job"
target = "mine"
[[stages]]
name = "only"
title = "the only stage"
command = ["true"]
"""


class Folder:
    """A project folder; files are written with their paths in it."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path

    @property
    def project(self) -> Project:
        """The folder as rlbox sees it."""
        return Project(folder=self.path)

    def write(self, name: str, text: str) -> Path:
        """Write a file and return its path."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def target(self, name: str, text: str = TARGET) -> Path:
        """Write the spec of a target."""
        return self.write(f"images/{name}/target.toml", text)

    def job(self, name: str, text: str = JOB) -> Path:
        """Write the file of a job."""
        return self.write(f"jobs/{name}.toml", text)

    def files(self) -> list[str]:
        """Every file in the folder, sorted."""
        return sorted(path.relative_to(self.path).as_posix() for path in self.path.rglob("*") if path.is_file())


@dataclass(frozen=True, kw_only=True)
class Said:
    """What one command left behind."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON object on stdout."""
        return json.loads(self.out)


class Rlbox:
    """The command line in this process."""

    def __init__(self, main: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]) -> None:
        self._main = main
        self._capsys = capsys

    def __call__(self, *words: str) -> Said:
        self._capsys.readouterr()
        code = self._main(words)
        out, err = self._capsys.readouterr()
        return Said(code=code, out=out, err=err)


LIMITS = ContainerDefaults(
    network="host",
    shm_gib=1.0,
    memory_gib=0.0,
    cpus=0.0,
    pids=0,
    user="caller",
    mount="/data",
    host="/disk",
    create=False,
    need_gib=1.0,
)


def image_plan(**changes: Any) -> ImagePlan:
    """Return a small image plan with `changes`."""
    values: dict[str, Any] = {
        "target": "mine",
        "title": "smallest target",
        "tag": "rlbox/mine:latest",
        "rendered": {"images/mine/Dockerfile": "FROM scratch\n"},
        "context": {"Dockerfile": "FROM scratch\n", "scripts/install.sh": "#!/bin/sh\n"},
        "lock": "current",
        "bootstrap": "debian:bookworm",
        "packages": ("python3",),
        "groups": ("tools",),
        "torch_groups": (),
        "python": "3.11",
        "network": "host",
        "epoch": 0,
        "container": LIMITS,
        "env": {},
    }
    return ImagePlan(**{**values, **changes})
