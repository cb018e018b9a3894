"""The tutorial docs/first-job.md: every command is run, and every line of output that it shows is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import CHECKOUT

PAGE = (CHECKOUT / "docs/first-job.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_first_job_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    blocks = re.findall(r"```(sh|text)\n(.*?)```", PAGE, re.DOTALL)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "RLBOX_LANG": "en"}
    folder, output = tmp_path, ""
    for kind, text in blocks:
        if kind == "text":
            assert [line for line in text.splitlines() if line not in output] == [], output
            continue
        script = f"set -e\nexport RLBOX_DATA={tmp_path / 'first/data'}\n{text}"
        done = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, check=False)
        folder, output = tmp_path / "first", done.stdout + done.stderr
        assert done.returncode == 0, output
