"""From an empty folder to a run of one's own: `rlbox init`, `lock`, `build`, `run`, and what they cost."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from enginebox import Box
from projectbox import own


def layers(image: str) -> list[str]:
    said = subprocess.run(["docker", "image", "inspect", image], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(said.stdout)[0]["RootFS"]["Layers"]
    return found


@pytest.mark.usefixtures("shipped")
def test_four_commands_and_no_package(tmp_path: Path) -> None:
    box = Box(project=tmp_path / "mine", data=tmp_path / "disk")
    box.project.mkdir()
    box.data.mkdir()
    begun = box("init", "mine", "--machine", "cpu")
    assert begun.code == 0, begun.err
    spec = box.project / "images/mine/target.toml"
    spec.write_text(spec.read_text() + '[env]\nOMP_NUM_THREADS = "1"\n')
    for words in (("lock", "mine"), ("build", "mine"), ("run", "mine")):
        done = box(*words)
        assert done.code == 0, done.err
    mine, shipped = layers(own("mine")), layers(own("local"))
    assert len(mine) == len(shipped)
    # The last layer is the rest of rlbox: it decides no image, so one that was built by another tree is kept.
    moved = [one for one, other in zip(mine[:-1], shipped[:-1], strict=True) if one != other]
    assert len(moved) == 2  # the lock and the facts of the fixes, which name the target
    assert box.state()["state"] == "passed"
