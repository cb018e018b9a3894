"""The check of a GPU's free memory asks of the GPUs that the run sees, and of no others."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.config.toml_files import load_toml

FIX = CHECKOUT / "templates/fixes/free-memory-below-utilization.toml"
SMI = """#!/bin/sh
rows='0, 79000, 81559
1, 54000, 81559'
case "$1" in -i) echo "$rows" | grep "^$2," ;; *) echo "$rows" ;; esac
"""


@pytest.mark.allow("processes")
@pytest.mark.parametrize(
    ("visible", "percent", "code"),
    [("", "", 1), ("0", "", 0), ("1", "", 1), ("", "0", 0), ("", "60", 0), ("", "67", 1)],
)
def test_it_asks_of_the_gpus_that_are_visible(visible: str, percent: str, code: int, tmp_path: Path) -> None:
    """And for no more than the run's inference engines take: 0 percent without one."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    check = load_toml(FIX)["check"]["run"]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": visible}
    env |= {"RLBOX_ENGINE_PERCENT": percent} if percent else {}
    done = subprocess.run(("sh", "-c", check), env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, "GPU 1: 52 of 79 GiB free" in done.stdout) == (code, bool(code))
