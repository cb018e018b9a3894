"""How one answer did: the code that it holds, and what the sandbox's answers say of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlbox.amounts import limit_text
from rlbox.foreign import parse_json

EXTRACTION_VERSION = 1
"""Counts up when `extract_code` changes: other code out of the same answer is another score."""
SCORING_VERSION = 1
"""Counts up when a verdict may be another for the same answer."""
_BLOCK = re.compile(r"```(?:python3?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_CODE = re.compile(r"^(def|import|from|print|for|while|class)\b", re.MULTILINE)
PACKAGE_MISSING_STATUS = 3
"""Exit status of a comparison whose package is not there."""
_TOLD = 300


@dataclass(frozen=True, kw_only=True)
class AnswerVerdict:
    """How one answer did: `passed` of `runs` runs were right, `clean` ended by themselves with exit status 0.

    `outcome` is accepted, wrong, failed (an exception), timeout, no-code, or sandbox (the sandbox itself failed, which
    says nothing about the answer and is no score).
    """

    outcome: str
    runs: int = 1
    passed: int = 0
    clean: int = 0
    detail: str = ""

    @property
    def accepted(self) -> bool:
        """Every run was right."""
        return self.outcome == "accepted"

    @property
    def executed(self) -> bool:
        """Every run that was made ended by itself with exit status 0."""
        return self.runs > 0 and self.clean == self.runs


def extract_code(answer: str) -> str:
    """Return the longest code block of an answer; all of it when it has none but looks like code; else nothing."""
    if blocks := _BLOCK.findall(answer):
        return str(max(blocks, key=len)).strip("\n")
    return answer if _CODE.search(answer) else ""


def parse_check_reply(reply: Mapping[str, Any]) -> AnswerVerdict:
    """Return the checker's word; a program whose answers were wrong has ended cleanly all the same."""
    outcome = "sandbox" if reply.get("status") == "SandboxError" else str(reply.get("verdict", "sandbox"))
    detail = str(reply.get("detail") or reply.get("message") or "")[-_TOLD:]
    right = outcome == "accepted"
    return AnswerVerdict(outcome=outcome, passed=right, clean=right or outcome == "wrong", detail=detail)


def judge_run(reply: Mapping[str, Any], expected: str, run_s: float) -> tuple[str, str]:
    """Return the outcome of one run of a program, and what to say of it."""
    result = reply.get("run_result") or {}
    if reply.get("status") == "SandboxError" or not result:
        return "sandbox", str(reply.get("message", ""))[-_TOLD:]
    if result.get("status") == "TimeLimitExceeded":
        return "timeout", f"more than {limit_text(run_s)} of processor time, or asleep"
    if result.get("return_code") != 0:
        return "failed", str(result.get("stderr") or "").strip()[-_TOLD:]
    printed = str(result.get("stdout") or "")
    if not is_same_output(printed, expected):
        return "wrong", f"printed {printed[:100]!r}, not {expected[:100]!r}"
    return "accepted", ""


def is_same_output(printed: str, expected: str) -> bool:
    """Whether two outputs hold the same words in the same lines, blank ends and empty lines aside."""
    return _lines(printed) == _lines(expected)


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def parse_score_reply(reply: Mapping[str, Any]) -> AnswerVerdict:
    """Return how a comparison of an answer with what is wanted went; one that cannot be made is no score."""
    found, told = read_score_line(reply)
    if found is not None and isinstance(found.get("score"), (int, float)):
        right = found["score"] >= 1
        return AnswerVerdict(outcome="accepted" if right else "wrong", passed=right, clean=1, detail="")
    result = reply.get("run_result") or {}
    if result.get("status") == "TimeLimitExceeded":
        return AnswerVerdict(outcome="timeout", detail="the comparison took longer than it may")
    broken = reply.get("status") == "SandboxError" or not result or result.get("return_code") == PACKAGE_MISSING_STATUS
    return AnswerVerdict(outcome="sandbox" if broken else "failed", detail=told)


def read_score_line(reply: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return the last line of a comparison, and else why there is none."""
    result = reply.get("run_result") or {}
    lines = str(result.get("stdout") or "").strip().splitlines()
    if reply.get("status") == "Success" and lines:
        with contextlib.suppress(ValueError):
            found = parse_json(lines[-1].encode())
            if isinstance(found, dict):
                return found, ""
    return None, str(reply.get("message") or result.get("stderr") or "it said nothing").strip()[-_TOLD:]
