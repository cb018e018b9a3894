"""Rewards by a real sandbox, and by replies that a sandbox may give; the file is loaded by its path, as trainers do."""

from __future__ import annotations

import asyncio
import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlbox.evaluation import rewards

RIGHT, TESTS = "```python\ndef f(x):\n    return 2 * x\n```", "assert f(21) == 42"
FAILED = {"verdict": "failed", "detail": "the program does not answer: it is gone"}


def test_trainers_get_rewards_of_a_real_sandbox_and_receipts(
    sandbox_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLBOX_SANDBOX_URL", sandbox_url)
    monkeypatch.setenv("RLBOX_REWARD_RECEIPTS", str(tmp_path / "receipts"))
    loaded = SimpleNamespace(**runpy.run_path(rewards.__file__))
    slow = json.dumps({"tests": TESTS, "run_timeout": 0.5})
    answers = [RIGHT, RIGHT.replace("2 *", "3 *"), "```python\ndef f(x):\n    while 1: pass\n```", "no idea"]
    chats = [[{"role": "assistant", "content": answer}] for answer in answers]
    assert loaded.sandbox_reward(prompts=[], completions=chats, tests=[TESTS, TESTS, slow, TESTS]) == [1, 0, 0, 0]
    assert loaded.compute_score("mine", RIGHT, TESTS, {"index": 7}) == 1.0
    trace = SimpleNamespace(last_reply=RIGHT, id="t1")
    assert asyncio.run(loaded.score_trace(SimpleNamespace(tests=TESTS), trace)) == 1.0
    receipts = {row["id"]: row for row in map(json.loads, (tmp_path / "receipts").read_text().splitlines())}
    causes = sorted((row["outcome"], row["cause"]) for row in receipts.values())
    assert causes == [*[("accepted", "model")] * 3, ("no-code", "model"), ("timeout", "limits"), ("wrong", "model")]
    receipt = receipts["mine/7"]
    assert (receipt["sandbox"]["version"], receipt["attempts"], len(receipt["program"])) == (3, 1, 64)
    monkeypatch.setenv("RLBOX_SANDBOX_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(rewards, "_FIRST_PAUSE_S", 0.001)
    assert rewards.sandbox_reward(prompts=[""], completions=[RIGHT], tests=[TESTS]) == [None]
    with pytest.raises(rewards.MissingRewardError, match="mine/ has no reward"):
        rewards.compute_score("mine", RIGHT, TESTS)


@pytest.mark.parametrize(
    ("replies", "reward", "attempts"),
    [
        ([{"status": "SandboxError"}], None, 6),
        ([{"status": "SandboxError"}, {"verdict": "accepted"}], 1.0, 2),
        ([FAILED, {"verdict": "accepted"}], 1.0, 2),
        ([FAILED], 0.0, 3),
        ([FAILED, FAILED, {"status": "SandboxError"}], None, 6),
        ([{"verdict": "failed", "rlbox": {"limit": "memory"}}], 0.0, 1),
    ],
)
def test_a_failed_sandbox_is_a_missing_reward(
    monkeypatch: pytest.MonkeyPatch, replies: list[Any], reward: float | None, attempts: int
) -> None:
    script = iter([*replies, *[replies[-1]] * 6])
    monkeypatch.setattr(rewards, "_post_check", lambda *_: next(script))
    monkeypatch.setattr(rewards, "_FIRST_PAUSE_S", 0.001)
    receipt = rewards.check_answer_and_append_receipt(RIGHT, TESTS)
    assert (receipt["reward"], receipt["attempts"]) == (reward, attempts)
