"""The programs of `holdem`: how near a decision is, what the engine is asked for, whose patch is where."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from holdem import sources
from holdem.answer import judge, read_answer
from holdem.plugin import _facts, log_rollout
from test_holdem_plugin import ARGS, Engine, Sample, ask, engine
from test_holdem_sources import trees

__all__ = ["engine", "trees"]


@pytest.mark.parametrize(
    ("given", "label", "score"),
    [
        ("raise 10", "raise 10", 1.0),
        ("raise 5", "raise 10", 0.75),
        ("raise", "raise 10", 0.5),
        ("raise 10", "raise", 1.0),
        ("call", "call", 1.0),
        ("bet 10", "raise 10", 0.25),
        ("raise 10", "bet 10", 0.25),
        ("bet 10", "call", 0.0),
        ("call", "bet 10", 0.0),
        ("fold", "call", 0.0),
    ],
)
def test_how_near_a_decision_is(given: str, label: str, score: float) -> None:
    assert judge(f"<action>{given}</action>", label)["score"] == score


def test_an_amount_without_end_is_half_right() -> None:
    text = f"<action>raise {'9' * 400}</action>"
    assert judge(text, "raise 10")["score"] == 0.5


def test_what_a_judgement_tells() -> None:
    assert judge("nothing", "raise 10") == {
        "score": -1.0,
        "action": "",
        "label": "raise 10",
        "well_formed": False,
        "exact": False,
    }
    assert judge("<action>Raise 10</action>", "raise 10.0") == {
        "score": 1.0,
        "action": "raise 10",
        "label": "raise 10",
        "well_formed": True,
        "exact": True,
    }
    with pytest.raises(ValueError, match="names no action"):
        judge("<action>fold</action>", "think")
    call = '<tool_call>{"name": "%s", "arguments": {"action_type": "fold"}}</tool_call>'
    assert read_answer(call % "look") is None
    assert str(read_answer(call % "make_action")) == "fold"


def test_one_token_of_room_is_room(engine: Engine) -> None:
    engine.answers = [("abc", "abort"), ("d", "stop")]
    sample = ask(ask(Sample(), room=4), room=4, stop=["x"])
    assert engine.asked[1][1]["sampling_params"] == {"max_new_tokens": 1, "stop": ["x", "</action>"]}
    assert sample.response == "abcd"


def test_only_what_was_judged_counts(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("HOLDEM_METRICS", raising=False)
    samples = [Sample(reward=reward) for reward in ({"score": 1.0}, {"other": 5.0}, 7.0, None)]
    with caplog.at_level("INFO"):
        log_rollout(1, ARGS, samples, None, 0.0)
    assert "mean_reward=1.0 reward_std=0.0 well_formed=0.0 exact=0.0 truncated=0 tokens=0 samples=4" in caplog.text
    assert _facts([], [])["mean_reward"] is None


def test_a_patch_that_half_applies_is_refused(
    trees: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    megatron, patch = trees
    plain = sources._git_apply

    def fails(*words: Any) -> Any:
        done = plain(*words)
        return done if "--check" in words else SimpleNamespace(returncode=1, stderr=" disk full ")

    monkeypatch.setattr(sources, "_git_apply", fails)
    with pytest.raises(sources.SourcesError, match=r"could not be applied in .*: disk full"):
        sources.patch_megatron(megatron, patch, tmp_path / "out")


@pytest.mark.parametrize(
    ("places", "patched", "said"),
    [
        (None, True, "SGLang is not installed"),
        ([], True, "SGLang is not installed"),
        (["/v/sglang"], True, "SGLang has slime's patch"),
        (["/v/sglang"], False, "SGLang is the release, without slime's patch"),
    ],
)
def test_whether_sglang_has_the_patch(
    monkeypatch: pytest.MonkeyPatch, places: list[str] | None, patched: bool, said: str
) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=places))
    asked: list[Any] = []
    monkeypatch.setattr(sources, "fits", lambda *words, **named: asked.append((words, named)) or patched)
    assert sources.tell_sglang(Path("p")) == said
    assert asked == ([((Path("p"), Path("/v"), 2), {"backwards": True})] if places else [])
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    assert sources.tell_sglang(Path("p")) == "SGLang is not installed"
