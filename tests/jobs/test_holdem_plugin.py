"""The functions that slime calls, with a small slime that behaves like v0.2.2 where they touch it, and an engine."""

from __future__ import annotations

import asyncio
import enum
import json
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from holdem import plugin, train_only

INSTRUCTION = "In this hand, your position is BTN. Now it is your turn."


class Tokenizer:
    """One token a character; the end of a turn is token 0."""

    eos_token_id = 0

    def apply_chat_template(self, chat: list[dict[str, str]], **options: Any) -> str:
        assert options == {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
        return "".join(f"[{turn['role']}]{turn['content']}" for turn in chat) + "[assistant]"

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(character) for character in text]


@dataclass
class Sample:
    """What `slime.utils.types.Sample` has of what is used."""

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"

    prompt: str = INSTRUCTION
    label: str = "call"
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    reward: Any = None
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    status: Status = Status.PENDING

    def update_from_meta_info(self, args: Any, meta_info: dict[str, Any]) -> None:
        ends = {"stop": "COMPLETED", "length": "TRUNCATED", "abort": "ABORTED"}
        self.status = Sample.Status[ends[meta_info["finish_reason"]["type"]]]


class Engine:
    """SGLang behind its router: answers with what it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: list[tuple[str, str]] = []

    async def post(self, url: str, payload: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((url, json.loads(json.dumps(payload))))
        text, end = self.answers.pop(0)
        meta: dict[str, Any] = {"finish_reason": {"type": end}}
        if text:
            meta["output_token_logprobs"] = [[-0.5, ord(character), None] for character in text]
        return {"text": text, "meta_info": meta}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    found = Engine()
    modules = {
        "slime": {},
        "slime.rollout": {},
        "slime.rollout.sglang_rollout": {"GenerateState": lambda args: types.SimpleNamespace(tokenizer=Tokenizer())},
        "slime.utils": {},
        "slime.utils.http_utils": {"post": found.post},
        "slime.utils.processing_utils": {"load_tokenizer": lambda path, trust_remote_code: Tokenizer()},
    }
    for name, members in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    train_only._tokenizer.cache_clear()
    yield found
    train_only._tokenizer.cache_clear()


ARGS = types.SimpleNamespace(sglang_router_ip="127.0.0.1", sglang_router_port=8130, hf_checkpoint="m")


def ask(sample: Sample, room: int = 64, **sampling: Any) -> Sample:
    return asyncio.run(plugin.generate(ARGS, sample, {"max_new_tokens": room, "stop": None, **sampling}))


def test_an_answer_comes_with_its_tokens(engine: Engine) -> None:
    engine.answers = [("<action>call</action>", "stop")]
    sample = ask(Sample(), temperature=1.0)
    url, asked = engine.asked[0]
    assert url == "http://127.0.0.1:8130/generate"
    assert asked["return_logprob"] is True
    assert asked["sampling_params"] == {"max_new_tokens": 64, "stop": ["</action>"], "temperature": 1.0}
    assert "".join(map(chr, asked["input_ids"])).endswith(f"[user]{INSTRUCTION}[assistant]")
    assert sample.status is Sample.Status.COMPLETED
    assert sample.response_length == len(sample.response) == len(sample.rollout_log_probs or []) == 21
    assert "".join(map(chr, sample.tokens)).endswith("[assistant]<action>call</action>")
    assert asyncio.run(plugin.reward(ARGS, sample))["score"] == 1.0


def test_an_answer_that_was_cut_off_goes_on(engine: Engine) -> None:
    engine.answers = [("<action>ra", "abort"), ("ise 11</action>", "stop")]
    sample = ask(Sample(label="raise 11"))
    assert sample.status is Sample.Status.ABORTED
    sample = ask(sample)
    assert engine.asked[1][1]["sampling_params"]["max_new_tokens"] == 64 - 10
    assert "".join(map(chr, engine.asked[1][1]["input_ids"])).endswith("[assistant]<action>ra")
    assert sample.response == "<action>raise 11</action>"
    assert sample.response_length == len(sample.rollout_log_probs or []) == 25


def test_an_abort_before_the_first_token_brings_nothing(engine: Engine) -> None:
    engine.answers = [("", "abort")]
    sample = ask(Sample())
    assert (sample.response_length, sample.rollout_log_probs, sample.status) == (0, [], Sample.Status.ABORTED)


def test_without_room_nothing_is_asked(engine: Engine) -> None:
    engine.answers = [("abc", "abort")]
    sample = ask(ask(Sample(), room=3), room=3)
    assert len(engine.asked) == 1
    assert sample.status is Sample.Status.TRUNCATED


def test_tokens_of_an_older_policy_stay_masked(engine: Engine) -> None:
    engine.answers = [("ab", "abort"), ("cd", "length")]
    sample = ask(Sample())
    sample.loss_mask = [0, 0]  # what slime does with --mask-offpolicy-in-partial-rollout
    assert ask(sample).loss_mask == [0, 0, 1, 1]


def test_the_line_and_the_row_of_a_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOLDEM_METRICS", str(tmp_path / "metrics.jsonl"))
    monkeypatch.setenv("HOLDEM_STAGE", "smoke")
    good, bad = Sample(response_length=5), Sample(response_length=7, status=Sample.Status.TRUNCATED)
    good.reward, bad.reward = ({"score": score, "well_formed": score > 0, "exact": score > 0} for score in (1.0, -1.0))
    with caplog.at_level("INFO"):
        assert plugin.log_rollout(3, ARGS, [[good, bad], [good, bad]], None, 1.234) is False
    assert caplog.messages == [
        "[holdem][rollout 3] mean_reward=0.0 reward_std=1.0 well_formed=0.5 exact=0.5 truncated=2 tokens=24 samples=4 "
        "seconds=1.23"
    ]
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (row["stage"], row["rollout"], row["mean_reward"], row["tokens"]) == ("smoke", 3, 0.0, 24)


def test_a_rollout_that_nobody_judged_has_no_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDEM_METRICS", str(tmp_path / "metrics.jsonl"))
    plugin.log_rollout(0, ARGS, [Sample()], None, 0.0)
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["mean_reward"] is None  # a gate takes it for a NaN


def test_train_only_learns_the_labels_without_an_engine(engine: Engine) -> None:
    groups = [[Sample(label="raise 11.0")], [Sample(label="fold")]]
    args = types.SimpleNamespace(hf_checkpoint="m", rollout_batch_size=2)
    source = types.SimpleNamespace(get_samples=lambda count: groups[:count])
    found = train_only.generate_rollout(args, 0, source)
    first = found[0][0]
    assert engine.asked == []
    assert first.response == "<action>raise 11</action>"
    assert first.loss_mask == [1] * first.response_length
    assert first.response_length == len(first.response) + 1
    assert first.tokens[-1] == Tokenizer.eos_token_id
    assert "".join(map(chr, first.tokens[:-1])).endswith("[assistant]<action>raise 11</action>")


def test_train_only_refuses_what_it_cannot_do(engine: Engine) -> None:
    args = types.SimpleNamespace(hf_checkpoint="m", rollout_batch_size=1)
    source = types.SimpleNamespace(get_samples=lambda count: [[Sample(label="?")]])
    with pytest.raises(ValueError, match="names no action"):
        train_only.generate_rollout(args, 0, source)
    with pytest.raises(ValueError, match="no evaluation"):
        train_only.generate_rollout(args, 0, source, evaluation=True)
