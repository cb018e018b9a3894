"""A fresh virtual environment, filled by `uv` from the package index of this machine and from local files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def index_environment() -> dict[str, str]:
    """Return the environment in which uv uses the package index that pip is configured for."""
    pip = [Path(sys.prefix, "bootstrap/bin/python"), "-m", "pip", "config", "list"]  # what uv does not read
    said = subprocess.run(pip, capture_output=True, text=True, check=False).stdout if pip[0].exists() else ""
    index = dict(re.findall(r"^(\S+)='(.*)'$", said, re.MULTILINE)).get("global.index-url", "")
    index = os.environ.get("PIP_INDEX_URL", index)
    return {**({"UV_DEFAULT_INDEX": index} if index else {}), **os.environ}


def run_uv(folder: Path, env: Mapping[str, str], *words: str) -> None:
    """Run uv for the environment `folder`/venv; `env` is that of `index_environment`."""
    argv, given = [Path(sys.executable).with_name("uv"), *words], {**env, "VIRTUAL_ENV": str(folder / "venv")}
    done = subprocess.run(argv, cwd=folder, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def create_venv(folder: Path, env: Mapping[str, str], *packages: str) -> Path:
    """Return the folder of programs of a new environment `folder`/venv with these packages."""
    run_uv(folder, env, "venv", "--python", sys.executable, str(folder / "venv"))
    run_uv(folder, env, "pip", "install", *packages)
    return folder / "venv/bin"
