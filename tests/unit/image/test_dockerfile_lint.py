"""Every rendered Dockerfile passes hadolint, and the linter is one that finds something."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.system.command import run_command
from rlbox.values import Command

HADOLINT = Path(sys.executable).with_name("hadolint")
FILES = sorted((CHECKOUT / "images").glob("*/Dockerfile"))
# DL3064 takes TOKENIZERS_PARALLELISM, and any name with TOKEN in it, for a secret.
IGNORED = ("--ignore", "DL3064")


def lint(*files: Path) -> tuple[int, str]:
    command = Command(argv=(str(HADOLINT), "--no-color", *IGNORED, *map(str, files)), timeout_s=60)
    done = run_command(command)
    return done.exit_code, done.stdout


@pytest.mark.allow("processes")
def test_rendered_dockerfiles_are_clean() -> None:
    assert len(FILES) >= 4
    assert lint(*FILES) == (0, "")


@pytest.mark.allow("processes")
def test_the_linter_sees_what_is_wrong(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian:latest\nRUN cd /x && wget http://example.org/a | sh\n")
    code, said = lint(bad)
    assert code == 1
    assert {"DL3007", "DL3003", "DL4006"} <= {word for line in said.splitlines() for word in line.split()}
