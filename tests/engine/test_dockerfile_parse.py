"""Every rendered Dockerfile is read by the parser of BuildKit itself, which builds nothing for it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from fakes import CHECKOUT

TARGETS = sorted(path.parent.name for path in (CHECKOUT / "images").glob("*/Dockerfile"))
QUICK = "a800-cn"


def parse(dockerfile: Path, context: Path) -> subprocess.CompletedProcess[str]:
    """Ask BuildKit's frontend what the Dockerfile takes; an empty folder stands for a base image of a registry."""
    base = re.match(r"(?:#.*\n|\n)*FROM (\S+@sha256:\S+)", dockerfile.read_text())
    instead = ("--build-context", f"{base[1]}={context}") if base else ()
    known = subprocess.run(["docker", "buildx", "build", "--help"], capture_output=True, text=True).stdout
    # a client before 0.15 has an option of its own for it
    asked = ("--call=outline",) if "--call" in known else ("--print=outline",)
    return subprocess.run(
        ["docker", "buildx", "build", *asked, *instead, "--file", str(dockerfile), str(context)],
        env={**os.environ, "BUILDX_EXPERIMENTAL": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == QUICK else pytest.mark.slow) for name in TARGETS]
)
def test_buildkit_reads_it(name: str, tmp_path: Path) -> None:
    done = parse(CHECKOUT / "images" / name / "Dockerfile", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "SOURCE_DATE_EPOCH" in done.stdout
