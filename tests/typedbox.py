"""Lines of guides and tables as a reader types them, as far as they go without an engine, a network and a GPU."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

import pytest
from fakes import Rlbox, Said

CHANGING = ("build", "compile", "fetch", "render", "run", "shell", "lock", "push", "save", "warm")


def words_of(line: str) -> list[str]:
    """Return the words after `rlbox` of a line: what changes something gets `--dry-run`, and no lock is created again.

    A run with `--build` is tried on a real engine.
    """
    words = [word for word in shlex.split(line.partition(">")[0].partition("  ")[0])[1:] if word != "--build"]
    if words[0] == "lock":
        return ["lock", words[1] if len(words) > 1 else "local", "--check", "--offline"]
    if words[0] in CHANGING and not {"--check", "--dry-run"} & set(words):
        words[1:1] = ["--dry-run"]
    if words[0] == "vast" and not {"--help", "--dry-run"} & set(words):
        words += ["--dry-run"]
    return words


def typed_of(lines: Iterable[str]) -> list[Any]:
    """Return the lines as cases of a test, in their order; `gpus` asks Ray's dashboard, the others nobody."""
    asks = pytest.mark.allow("processes", "sockets")
    return [pytest.param(line, marks=asks) if line.startswith("rlbox gpus") else line for line in sorted(lines)]


class Typed:
    """Types a line and expects that it works."""

    def __init__(self, rlbox: Rlbox) -> None:
        self._rlbox = rlbox

    def __call__(self, line: str, code: int = 0) -> Said:
        said = self._rlbox(*words_of(line))
        assert "Traceback" not in said.err
        assert said.code == code, (line, said.err, said.out[-500:])
        return said
