"""How one answer did: the code that it holds, and what the sandbox's replies say of it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rlbox.amounts import exact_duration_text
from rlbox.foreign import parse_json

EXTRACTION_VERSION = 1
"""Counts up when `extract_longest_code_block` changes: other code out of the same answer is another score."""
SCORING_VERSION = 1
"""Counts up when a verdict may be another for the same answer."""
SANDBOX_ERROR = "SandboxError"
"""Status of a reply that the sandbox did not give."""
Outcome = Literal["accepted", "wrong", "failed", "timeout", "no-code", "sandbox"]
"""`failed`: an exception; `sandbox`: the sandbox itself failed, which says nothing about the answer and is no score."""
_CODE_BLOCK = re.compile(r"```(?:python3?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_CODE_LINE = re.compile(r"^(def|import|from|print|for|while|class)\b", re.MULTILINE)
_PACKAGE_MISSING_STATUS = 3
_MAX_DETAIL = 300


@dataclass(frozen=True, kw_only=True)
class AnswerVerdict:
    """How one answer did: `passed` of `runs` runs were right, `clean` ended by themselves with exit status 0."""

    outcome: Outcome
    runs: int = 1
    passed: int = 0
    clean: int = 0
    detail: str = ""

    @property
    def all_runs_exited_zero(self) -> bool:
        """Every run that was made ended by itself with exit status 0."""
        return self.runs > 0 and self.clean == self.runs


class RunVerdict(NamedTuple):
    """The outcome of one run of a program, and a detail to show."""

    outcome: Outcome
    detail: str = ""


def extract_longest_code_block(answer: str) -> str:
    """Return the longest code block of an answer; all of it when it has none but looks like code; else nothing."""
    if blocks := _CODE_BLOCK.findall(answer):
        return str(max(blocks, key=len)).strip("\n")
    return answer if _CODE_LINE.search(answer) else ""


def parse_check_reply(reply: Mapping[str, Any]) -> AnswerVerdict:
    """Return the checker's verdict; a program whose answers were wrong has ended cleanly all the same."""
    outcome: Any = "sandbox" if reply.get("status") == SANDBOX_ERROR else str(reply.get("verdict", "sandbox"))
    detail = str(reply.get("detail") or reply.get("message") or "")[-_MAX_DETAIL:]
    accepted = outcome == "accepted"
    return AnswerVerdict(outcome=outcome, passed=accepted, clean=accepted or outcome == "wrong", detail=detail)


def parse_run_reply(reply: Mapping[str, Any], expected: str, limit_s: float) -> RunVerdict:
    """Return how one run of a program did against its expected output; `limit_s` was its limit."""
    result = reply.get("run_result") or {}
    if reply.get("status") == SANDBOX_ERROR or not result:
        return RunVerdict("sandbox", str(reply.get("message", ""))[-_MAX_DETAIL:])
    if result.get("status") == "TimeLimitExceeded":
        return RunVerdict("timeout", f"more than {exact_duration_text(limit_s)} of processor time, or asleep")
    if result.get("return_code") != 0:
        return RunVerdict("failed", str(result.get("stderr") or "").strip()[-_MAX_DETAIL:])
    printed = str(result.get("stdout") or "")
    if not has_same_words_by_line(printed, expected):
        return RunVerdict("wrong", f"printed {printed[:100]!r}, not {expected[:100]!r}")
    return RunVerdict("accepted")


def has_same_words_by_line(printed: str, expected: str) -> bool:
    """Whether two outputs hold the same words in the same lines, blank ends and empty lines aside."""
    return _split_lines(printed) == _split_lines(expected)


def _split_lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def parse_score_reply(reply: Mapping[str, Any]) -> AnswerVerdict:
    """Return how an answer did that was compared with the expected one; a comparison that failed is no score."""
    score = parse_last_json_or_empty(reply)
    if isinstance(score.get("score"), (int, float)):
        accepted = score["score"] >= 1
        return AnswerVerdict(outcome="accepted" if accepted else "wrong", passed=accepted, clean=1)
    result = reply.get("run_result") or {}
    if result.get("status") == "TimeLimitExceeded":
        return AnswerVerdict(outcome="timeout", detail="the comparison took longer than it may")
    status = result.get("return_code")
    is_broken = reply.get("status") == SANDBOX_ERROR or not result or status == _PACKAGE_MISSING_STATUS
    return AnswerVerdict(outcome="sandbox" if is_broken else "failed", detail=describe_failed_score(reply))


def parse_last_json_or_empty(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last line (JSON) of `score_answer.py`; empty where there is none."""
    lines = str((reply.get("run_result") or {}).get("stdout") or "").strip().splitlines()
    if reply.get("status") == "Success" and lines:
        with contextlib.suppress(ValueError):
            score = parse_json(lines[-1].encode())
            return score if isinstance(score, dict) else {}
    return {}


def describe_failed_score(reply: Mapping[str, Any]) -> str:
    stderr = (reply.get("run_result") or {}).get("stderr")
    return str(reply.get("message") or stderr or "it said nothing").strip()[-_MAX_DETAIL:]
