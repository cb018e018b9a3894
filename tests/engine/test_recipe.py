"""The recipe "Add a fix" of CONTRIBUTING.md, carried out: its two files, its commands, its fault test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from enginebox import CHECKOUT
from fault_mutants import mutants
from faultbox import load_case, load_fix, notices, problems


@pytest.fixture(scope="module")
def recipe() -> str:
    text = (CHECKOUT / "CONTRIBUTING.md").read_text("utf-8")
    _, _, rest = text.partition("## Add a fix\n")
    return dedent("\n".join(re.sub(r"^   ", "", line) for line in rest.partition("\n## ")[0].splitlines()))


@pytest.fixture(scope="module")
def project(recipe: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder with the two files of the recipe."""
    folder = tmp_path_factory.mktemp("project")
    blocks = re.findall(r"```toml\n# (\S+)\n(.*?)```", recipe, re.DOTALL)
    assert [Path(name).parent.as_posix() for name, _ in blocks] == ["templates/fixes", "tests/faults"]
    for name, text in blocks:
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text, "utf-8")
    return folder


def test_the_commands_work(recipe: str, project: Path) -> None:
    lines = [
        line[2:] for block in re.findall(r"```console\n(.*?)```", recipe, re.DOTALL) for line in block.splitlines()
    ]
    typed = [line.split()[1:] for line in lines if line.startswith("rlbox ")]
    assert typed
    name = next((project / "tests/faults").iterdir()).stem
    for words in typed:
        argv = [sys.executable, "-m", "rlbox", *words]
        done = subprocess.run(argv, cwd=project, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert name in done.stdout
    assert any(f"tests/engine/test_faults.py -k {name}" in line for line in lines)


def test_the_fault_test_proves_the_fix(project: Path) -> None:
    (path,) = (project / "tests/faults").iterdir()
    case = load_case(path.stem, path.parent)
    fix = load_fix(path.stem, project / "templates/fixes")
    assert problems(case, fix) == []
    assert [mutant.name for mutant in mutants(fix) if not notices(case, mutant.fix)] == []
