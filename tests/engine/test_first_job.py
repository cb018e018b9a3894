"""The tutorial first-job.md in both languages: its commands are run, and print each line of output that it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import CHECKOUT


@pytest.mark.slow
@pytest.mark.parametrize(("page", "language"), [("docs/first-job.md", "en"), ("docs/zh/first-job.md", "zh")])
def test_first_job_tutorial_prints_what_it_shows(tmp_path: Path, page: str, language: str) -> None:
    blocks = re.findall(r"```(sh|text)\n(.*?)```", (CHECKOUT / page).read_text(encoding="utf-8"), re.DOTALL)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "RLBOX_LANG": language}
    folder, output = tmp_path, ""
    for kind, text in blocks:
        if kind == "text":
            assert [line for line in text.splitlines() if line not in output] == [], output
            continue
        script = f"set -e\nexport RLBOX_DATA={tmp_path / 'first/data'}\n{text}"
        done = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, check=False)
        folder, output = tmp_path / "first", done.stdout + done.stderr
        assert done.returncode == 0, output
