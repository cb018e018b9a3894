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
