"""The linters and the type checker, as tests: `make test` is the one command that checks all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.config.toml_files import load_toml

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
    program = shutil.which("shellcheck") or CHECKOUT / ".venv/tools/usr/bin/shellcheck"
    assert Path(program).exists(), "no shellcheck on PATH; scripts/ensure-test-tools.sh brings it"
    scripts = [CHECKOUT / ".ci/run", *(CHECKOUT / "scripts").glob("*.sh"), *(CHECKOUT / "rlbox").rglob("*.sh")]
    own = [path for path in scripts if "bash" in path.read_text("utf-8").partition("\n")[0]]
    baked = [path for path in scripts if path not in own] + [*(CHECKOUT / "templates/scripts").glob("*.sh")]
    for options, scripts in (("--shell=bash", sorted(own)), ("--shell=sh", sorted(baked))):
        assert scripts
        # SC1090, SC1091: a script reads files that only exist where it runs
        run(str(program), options, "--exclude=SC1090,SC1091", *map(str, scripts))


@pytest.mark.parametrize("script", sorted((CHECKOUT / "templates/scripts").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_of_the_image_are_plain_sh(script: Path) -> None:
    run("sh", "-n", str(script))
