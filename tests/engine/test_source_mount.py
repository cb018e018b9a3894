"""`--set source=DIR` in a container: the tree is mounted read-only, each at a path of its own."""

from __future__ import annotations

import os
from pathlib import Path

from enginebox import Box

JOB = """
title = "calls a framework"
target = "tiny"
[source]
package = "frame"
version = "0.9.1"
[[services]]
name = "other"
title = "a process of its own, as a Ray head is"
command = ["{python}", "-u", "-c", "import frame, time; frame.train(); print('up'); time.sleep(600)"]
ready = { line = "up" }
[[stages]]
name = "train"
title = "one call"
services = ["other"]
command = ["sh", "-c", "{python} -c 'import frame; frame.train()'; touch {source}/frame/new || echo read-only"]
limits = { total_s = 60, silence_s = 30 }
[stages.gate]
require = [{ pattern = 'read-only' }, { pattern = 'loss' }, { pattern = 'loss', log = "other" }]
"""


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
