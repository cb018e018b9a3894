"""`make cases`: labelled failures, diagnosed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fakes import CHECKOUT

SCRIPT = CHECKOUT / "scripts/cases.py"
pytestmark = pytest.mark.allow("processes")


def run_cases(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run((sys.executable, SCRIPT, *args), capture_output=True, text=True, check=False)


def test_all_labelled_cases_are_right() -> None:
    ran = run_cases()
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.splitlines()[0].split() == ["kind", "right", "partly", "unknown", "wrong"]


def test_case_that_is_not_as_labelled_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/right.toml").write_text('kind = "mine"\nfix = "disk-full"\n')
    (tmp_path / "mine/train.log").write_text("RuntimeError: No CUDA GPUs are available\n")
    ran = run_cases(str(tmp_path))
    assert ran.returncode == 1
    assert "mine: wrong: no-gpu-visible, not disk-full" in ran.stdout
