"""The linters and the type checker, as tests: `make test` is the one command that checks all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.spec.load import load_toml

pytestmark = [pytest.mark.allow("processes"), pytest.mark.whole]


def run(*argv: str) -> None:
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_finds_nothing() -> None:
    run(sys.executable, "-m", "ruff", "check", "--quiet", ".")


def test_ruff_would_format_nothing() -> None:
    run(sys.executable, "-m", "ruff", "format", "--quiet", "--diff", ".")


def test_mypy_finds_nothing() -> None:
    assert load_toml(CHECKOUT / "pyproject.toml")["tool"]["mypy"]["strict"] is True
    run(sys.executable, "-m", "mypy")


def test_shellcheck_finds_nothing() -> None:
    program = shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed")
    scripts = [*sorted((CHECKOUT / "scripts").glob("*.sh")), *sorted((CHECKOUT / "templates/scripts").glob("*.sh"))]
    assert scripts
    run(program, "--exclude=SC1091", *map(str, scripts))  # files that only exist where a script runs


@pytest.mark.parametrize("script", sorted((CHECKOUT / "templates/scripts").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_of_the_image_are_plain_sh(script: Path) -> None:
    run("sh", "-n", str(script))
