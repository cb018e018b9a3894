"""The code that decides a verdict has a version in the lock: who changes it is asked whether that must count up."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from rlbox.evaluation import rewards, sandbox_client, suites
from rlbox.evaluation.sandbox_client import SCORE_PROGRAM, SandboxClient
from rlbox.sandbox import response

PROGRAMS = Path(response.__file__).parent / "programs"
KNOWN = {
    "extraction": (
        sandbox_client.EXTRACTION_VERSION,
        (
            rewards.extract_longest_code_block_or_bare_code,
            rewards._CODE_BLOCK,
            rewards._CODE_LINE,
        ),
    ),
    "scoring": (
        sandbox_client.SCORING_VERSION,
        (
            sandbox_client.judge_function_check_reply,
            rewards.classify_check_reply,
            sandbox_client.judge_run_reply,
            sandbox_client.has_same_words_by_line,
            sandbox_client._split_lines,
            sandbox_client.parse_score_reply,
            sandbox_client.parse_last_stdout_json_or_empty,
            SCORE_PROGRAM,
            SandboxClient.grade_until_first_failure,
            SandboxClient._check_functions,
            SandboxClient._run,
            suites._parse_humaneval,
            suites._parse_mbpp,
            suites._parse_codecontests,
        ),
    ),
    "sandbox": (
        response.VERSION,
        (Path(response.__file__), *sorted(PROGRAMS.glob("**/*.py"))),
    ),
}
DIGESTS = {
    ("extraction", 1): "da9aeb43ecf3901b",
    ("scoring", 1): "5b41f6bd48d38ed1",
    ("sandbox", 3): "38b653a13b24fad0",
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
