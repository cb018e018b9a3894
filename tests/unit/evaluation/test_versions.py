"""The code that decides a verdict has a version in the lock: who changes it is asked whether that must count up."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from rlbox.evaluation import problems, verdict
from rlbox.evaluation.sandbox_client import SCORERS, Sandbox
from rlbox.sandbox import answer

PROGRAMS = Path(answer.__file__).parent / "programs"
KNOWN = {
    "extraction": (verdict.EXTRACTION, (verdict.code_of, verdict._BLOCK, verdict._CODE)),
    "scoring": (
        verdict.SCORING,
        (
            *(verdict.checked_verdict, verdict.run_outcome, verdict.same_output, verdict._lines),
            *(verdict.score_verdict, verdict.scored, *SCORERS.values()),
            *(Sandbox.judge, Sandbox._check, Sandbox._run, problems._humaneval, problems._mbpp, problems._codecontests),
        ),
    ),
    "sandbox": (
        answer.VERSION,
        (answer.verdict, answer.command_result, answer._OVER, *sorted(PROGRAMS.glob("**/*.py"))),
    ),
}
DIGESTS = {
    ("extraction", 1): "01e4ba5961f1312e",
    ("scoring", 1): "6a0d01604b7573ed",
    ("sandbox", 1): "c76cb96b55fea2f9",
}
"""May the same answer get another verdict now? Then count the version up; write the new digest here either way."""


def digest(parts: tuple[Any, ...]) -> str:
    return hashlib.sha256("\n".join(map(text, parts)).encode()).hexdigest()[:16]


def text(part: Any) -> str:
    if isinstance(part, Path):
        return part.read_text("utf-8")
    if inspect.isfunction(part):
        return inspect.getsource(part)
    return str(getattr(part, "pattern", part))


@pytest.mark.parametrize("name", KNOWN)
def test_code_that_decides_is_known(name: str) -> None:
    version, parts = KNOWN[name]
    assert DIGESTS[name, version] == digest(parts)
