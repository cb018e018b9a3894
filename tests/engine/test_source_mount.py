"""`--set source=DIR` in a container: the tree is mounted read-only, each at a path of its own."""

from __future__ import annotations

import os
from pathlib import Path

from enginebox import Box
from fakes import load_cases

CASES = load_cases("engine", "test_source_mount")
JOB = CASES["JOB"]


def tree(folder: Path, says: str) -> Path:
    """Write a tree whose files have the same time and, for texts of the same length, size."""
    (folder / "frame/version").mkdir(parents=True)
    (folder / "frame/version/version").write_text("0.9.1")
    (folder / "frame/__init__.py").write_text(f"def train():\n    print('loss of {says}')\n")
    os.utime(folder / "frame/__init__.py", (1_700_000_000, 1_700_000_000))
    return folder


def test_each_tree_is_mounted_read_only_and_compiled_for_itself(tiny: Box, tmp_path: Path) -> None:
    tiny.job("calls", JOB)
    for name in ("one", "two"):
        said = tiny("run", "calls", "--set", f"source={tree(tmp_path / name, name)}")
        assert said.code == 0, said.err
        log = (tiny.runs()[-1] / "stages/1-train/stage.log").read_text()
        assert f"loss of {name}\n" in log
        assert f"loss of {name}\n" in (tiny.runs()[-1] / "stages/1-train/other.log").read_text()
        assert "Read-only file system" in log
        assert not (tmp_path / name / "frame/new").exists()
        assert not (tmp_path / name / "frame/__pycache__").exists()
