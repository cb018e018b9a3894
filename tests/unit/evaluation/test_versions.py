"""The code that decides a verdict has a version in the lock: who changes it is asked whether that must count up."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from rlbox.evaluation import problems, verdict
from rlbox.evaluation.sandbox_client import SCORERS, SandboxClient
from rlbox.sandbox import answer

PROGRAMS = Path(answer.__file__).parent / "programs"
KNOWN = {
    "extraction": (verdict.EXTRACTION_VERSION, (verdict.extract_code, verdict._BLOCK, verdict._CODE)),
    "scoring": (
        verdict.SCORING_VERSION,
        (
            *(verdict.parse_check_reply, verdict.judge_run, verdict.is_same_output, verdict._lines),
            *(verdict.parse_score_reply, verdict.read_score_line, *SCORERS.values()),
            *(
                SandboxClient.judge,
                SandboxClient._check,
                SandboxClient._run,
                problems._humaneval,
                problems._mbpp,
                problems._codecontests,
            ),
        ),
    ),
    "sandbox": (
        answer.VERSION,
        (answer.verdict, answer.command_result, answer._OVER, *sorted(PROGRAMS.glob("**/*.py"))),
    ),
}
DIGESTS = {
    ("extraction", 1): "a925c03b32cdb7a7",
    ("scoring", 1): "24f253a1acd9bdca",
    ("sandbox", 1): "47c6c107a2f18ea5",
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
