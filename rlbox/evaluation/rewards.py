"""Rewards of programs, checked in rlbox's sandbox, for verl, TRL and verifiers.

A failure of the sandbox is a missing reward, never 0. Trainers load this file by its path, from an environment without
rlbox: it needs nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import sys
import time
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

SANDBOX_ERROR = "SandboxError"
"""Status of a reply that says nothing about the program."""
_ATTEMPTS, _FIRST_PAUSE_S = 6, 0.5
"""Pauses of 0.5 to 8 s, 15.5 s in all: a supervisor has restarted a sandbox by then."""
_TIMEOUT_S = 3600.0
"""For a reply: a request waits for its turn; the sandbox's own limits end a program."""
_AGREEING_RUNS = 3
_UNCLEAR_ENDS = ("the program does not answer", "the checker ended without a verdict", "[Errno 28]")
"""A program can end like this by itself, or because the machine killed it or had no space: it is run again."""
_CODE_BLOCK = re.compile(r"```(?:python3?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_CODE_LINE = re.compile(r"^(def|import|from|print|for|while|class)\b", re.MULTILINE)


class MissingRewardError(RuntimeError):
    """The sandbox failed: the answer has no reward."""


class CheckVerdict(NamedTuple):
    """`outcome`: accepted, wrong, failed, timeout, no-code or sandbox; `cause`: model, limits or infrastructure."""

    outcome: str
    cause: str
    detail: str = ""

    @property
    def reward_or_none_if_sandbox_failed(self) -> float | None:
        return None if self.cause == "infrastructure" else float(self.outcome == "accepted")

    @property
    def needs_rerun_to_confirm(self) -> bool:
        return self.cause == "model" and self.outcome == "failed" and any(end in self.detail for end in _UNCLEAR_ENDS)


def classify_check_reply(reply: Mapping[str, Any]) -> CheckVerdict:
    """Return what a reply to `/check` says of the program."""
    outcome, detail = reply.get("verdict"), str(reply.get("detail") or reply.get("message") or "")
    if reply.get("status") == SANDBOX_ERROR or outcome not in ("accepted", "wrong", "failed", "timeout"):
        return CheckVerdict("sandbox", "infrastructure", detail)
    return CheckVerdict(str(outcome), "limits" if (reply.get("rlbox") or {}).get("limit") else "model", detail)


def extract_longest_code_block_or_bare_code(answer: str) -> str:
    """Return the longest code block of an answer; all of it when it has none but looks like code; else nothing."""
    if blocks := _CODE_BLOCK.findall(answer):
        return str(max(blocks, key=len)).strip("\n")
    return answer if _CODE_LINE.search(answer) else ""


def check_answer_and_append_receipt(
    answer: str, problem: str | Mapping[str, Any], answer_id: str = ""
) -> dict[str, Any]:
    """Return the receipt of an answer; its `reward` is None where the sandbox failed.

    `problem`: fields of `/check` (`tests`, `before`, `names`, `run_timeout`, `memory_limit_MB`), as JSON too, or the
    source of the tests alone. The receipt is appended to the file `RLBOX_REWARD_RECEIPTS`, where that is set.
    """
    if isinstance(problem, str):
        problem = json.loads(problem) if problem.lstrip().startswith("{") else {"tests": problem}
    fields = dict(problem)
    request = {**fields, "code": extract_longest_code_block_or_bare_code(answer)}
    attempts, verdict, reply = 0, CheckVerdict("no-code", "model"), dict[str, Any]()
    if request["code"]:
        attempts, verdict, reply = _check_until_clear(request)
    receipt = {
        "id": answer_id or uuid.uuid4().hex,
        "time": time.time(),
        "reward": verdict.reward_or_none_if_sandbox_failed,
        **verdict._asdict(),
        "program": hashlib.sha256(request["code"].encode("utf-8", "surrogatepass")).hexdigest(),
        "problem": hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest(),
        "limits": {name: fields.get(name) for name in ("run_timeout", "memory_limit_MB")},
        "attempts": attempts,
        "sandbox": reply.get("rlbox") or {},
    }
    if path := os.environ.get("RLBOX_REWARD_RECEIPTS"):
        try:
            with open(path, "ab", buffering=0) as stream:  # one write: other processes append to it as well
                stream.write(json.dumps(receipt).encode() + b"\n")
        except OSError as error:
            sys.stderr.write(f"rlbox: no receipt was written: {error}\n")
    return receipt


def _check_until_clear(request: Mapping[str, Any]) -> tuple[int, CheckVerdict, dict[str, Any]]:
    """Return attempts, verdict and reply; an unclear end counts when it was seen `_AGREEING_RUNS` times."""
    deadline, unclear, pause_s = time.monotonic() + _TIMEOUT_S, 0, _FIRST_PAUSE_S
    for attempt in range(1, _ATTEMPTS + 1):
        reply = _post_check(request, max(1.0, deadline - time.monotonic()))
        verdict = classify_check_reply(reply)
        unclear += verdict.needs_rerun_to_confirm
        if unclear == _AGREEING_RUNS or not (verdict.needs_rerun_to_confirm or verdict.cause == "infrastructure"):
            return attempt, verdict, reply
        if attempt == _ATTEMPTS or time.monotonic() > deadline:
            break
        if not verdict.needs_rerun_to_confirm:
            time.sleep(pause_s)
            pause_s *= 2
    return attempt, CheckVerdict("sandbox", "infrastructure", verdict.detail), reply


def _post_check(request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return the sandbox's reply; one that cannot be had is a reply with the status SandboxError."""
    url = os.environ.get("RLBOX_SANDBOX_URL", "http://127.0.0.1:8080").rstrip("/") + "/check"
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the sandbox is on loopback
        with opener.open(url, json.dumps(request).encode(), timeout=timeout_s) as response:
            return dict(json.load(response))
    except Exception as error:  # whatever it was, the program was not judged
        return {"status": SANDBOX_ERROR, "message": f"{type(error).__name__}: {error}"}


def _require_reward(receipt: Mapping[str, Any]) -> float:
    if receipt["reward"] is None:
        raise MissingRewardError(f"the sandbox failed, answer {receipt['id']} has no reward: {receipt['detail']}")
    return float(receipt["reward"])


def compute_score(
    data_source: str, solution_str: str, ground_truth: str | Mapping[str, Any], extra_info: Any = None, **_: Any
) -> float:
    """Return the reward for verl, or raise `MissingRewardError`: a NaN would spoil the advantages of the whole group.

    verl 0.9.1 (trainer/ppo/v1/agent_loop_tq.py) leaves such an answer out; with `trainer.use_v1=False` the run ends.
    """
    index = (extra_info or {}).get("index", "")
    return _require_reward(check_answer_and_append_receipt(solution_str, ground_truth, f"{data_source}/{index}"))


def sandbox_reward(
    prompts: Sequence[Any], completions: Sequence[Any], tests: Sequence[Any], **_: Any
) -> list[float | None]:
    """Return the rewards for TRL, None for a missing one; `tests` is a column of the data set, a problem each."""
    answers = [text if isinstance(text, str) else str(text[-1]["content"]) for text in completions]
    with ThreadPoolExecutor(16) as pool:
        return [receipt["reward"] for receipt in pool.map(check_answer_and_append_receipt, answers, tests)]


async def score_trace(task: Any, trace: Any) -> float:
    """Return the reward for verifiers, by `task.tests`; a `MissingRewardError` marks the trace as failed."""
    return _require_reward(
        await asyncio.to_thread(check_answer_and_append_receipt, trace.last_reply, task.tests, trace.id)
    )
