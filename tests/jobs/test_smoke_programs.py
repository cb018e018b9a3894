"""The programs of `smoke` around torch, vLLM and Ray: what they refuse, and what they write."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pokerkit", reason="pokerkit needs Python 3.11")

from smoke import collect, deals, loop, metrics, rollout, servers
from smoke.decision import Spot
from smoke.program import JobError
from smoke.servers import Sample

SPOT = {"hole": ["Ah", "Kh"], "board": ["Qh", "Jh", "Th"], "pot": 30, "to_call": 10, "stack": 40}


def test_prompts_say_what_the_player_sees() -> None:
    spot = Spot.from_json(SPOT | {"board": [*SPOT["board"], "2c"]})
    assert deals.prompt(spot).splitlines() == [
        "turn Qh Jh Th 2c hand Ah Kh",
        "straight flush outs 0",
        "pot 30 bet 10 stack 40 odds 25",
        "fold call raise",
    ]
    assert (deals.row(spot)["best"], deals.row(spot)["values"]["raise"]) == ("raise", 60.0)


def test_the_loop_wants_two_rollouts_and_the_rise_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [word for name in ("data", "checkpoint", "out", "metrics") for word in (f"--{name}", name)]
    words += ["--policy-url", "p", "--reward-url", "r"]
    monkeypatch.setattr(sys, "argv", ["loop", *words, "--rollouts", "2"])
    assert loop.options().rollouts == 2
    monkeypatch.setattr(sys, "argv", ["loop", *words, "--rollouts", "1"])
    with pytest.raises(SystemExit):
        loop.options()
    assert loop.verdict([0.0, 1.0], 0.5).startswith("[smoke] passed: 2 rollouts, mean reward 0.0000 (first 1 rollouts)")
    assert loop.verdict([0.0] * 6 + [1.0] * 6, 1.0).endswith("0.0000 (first 5 rollouts) -> 1.0000 (last 5)")
    assert loop.verdict([1.0, 0.0], None)
    assert loop.verdict([1.0, 0.0], -1.0)
    with pytest.raises(JobError, match=r"a rise of 0\.6 was wanted"):
        loop.verdict([0.0, 0.5], 0.6)
    assert loop.reward(["a", "b"], [1.0, 2.0]) == [1.0, 2.0]
    with pytest.raises(AssertionError):
        loop.reward(["a"], [1.0, 2.0])


class Loop(loop.Loop):
    """The loop without servers: what it does with a rollout."""

    def __init__(self, tmp_path: Path) -> None:
        self.args = SimpleNamespace(generations=2, seed=0, out=tmp_path, policy_url="u")
        self.metrics = metrics.Metrics(tmp_path / "m.jsonl", "smoke")
        self.rows = {text: {"prompt": text} for text in ("one", "two")}
        self.check: list[dict[str, Any]] = []
        self.rollouts, self.version, self.means, self.synced = 0, 0, [], 0
        self.gaps = iter((1.0, 0.0))
        self.actors: Any = self
        self.policy: Any = SimpleNamespace(load_weights=lambda folder: None)

    def collect(self, rows: list[dict[str, Any]], *, count: int, seed: int) -> list[collect.Scored]:
        sample = Sample(text="", tokens=(7,), logprobs=(-1.0,), prompt_tokens=(1, 2))
        score = {"reward": 0.5, "action": "call", "legal": True, "best": "call"}
        return [collect.Scored(prompt=row["prompt"], sample=sample, score=score) for row in rows for _ in range(count)]

    def judge(self, rows: list[dict[str, Any]]) -> list[collect.Scored]:
        return self.collect(rows, count=1, seed=0)

    def gap(self, model: Any) -> float:
        return next(self.gaps)


def trainer(step: int) -> Any:
    model = SimpleNamespace(save_pretrained=lambda folder: (folder / "w").write_text("x"))
    return SimpleNamespace(state=SimpleNamespace(global_step=step), model=model)


def asked(*texts: str) -> list[Any]:
    return [[{"content": text}] for text in texts]


def test_a_rollout_is_in_the_order_of_the_trainer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Loop(tmp_path)
    found = made.rollout(asked("two", "two", "one", "one"), trainer(0))
    assert (found["prompt_ids"][0], found["completion_ids"], found["score"]) == ([1, 2], [[7]] * 4, [0.5] * 4)
    assert "Final collected 4 samples from rollout to train\n[holdem][rollout 0]" in capsys.readouterr().out
    assert (made.rollouts, made.means) == (1, [0.5])
    with pytest.raises(JobError, match="in an unexpected order"):
        made.rollout(asked("one", "two", "one", "two"), trainer(0))


def test_new_weights_must_be_those_that_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Loop(tmp_path)
    made.rollout(asked("one", "one"), trainer(1))  # an update that the server has not
    assert made.version == 1
    assert "weights of step 1 in the server: logprob gap 1.0e+00 before, 0.0e+00 after" in capsys.readouterr().out
    assert list((tmp_path / "weights").iterdir()) == []
    made.gaps = iter((1.0, 2e-4))
    with pytest.raises(JobError, match="does not answer with the weights of step 2"):
        made.sync(trainer(2))


def test_the_eval_decisions_are_judged_when_there_are_any(tmp_path: Path) -> None:
    made = Loop(tmp_path)
    assert made.evaluate("before") == 0.0
    assert not (tmp_path / "m.jsonl").exists()
    made.check = [{"prompt": "one"}]
    assert made.evaluate("before") == 0.5


def test_rollouts_are_scored_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deals.write(tmp_path, seed=1, train=1, evaluate=4, streets=("river",))
    made: list[int] = []

    class Collector:
        def __init__(self, *urls: str, temperature: float) -> None:
            assert (urls, temperature) == (("p", "r"), 1.0)

        def collect(self, rows: list[dict[str, Any]], *, count: int, seed: int) -> list[collect.Scored]:
            made.append(len(rows) * count)
            good, bad = ({"reward": 1.0, "action": action, "legal": True, "best": "call"} for action in ("call", None))
            sample = Sample(text="", tokens=(), logprobs=(), prompt_tokens=())
            return [collect.Scored(prompt="", sample=sample, score=score) for score in (good, *[bad] * bads)]

    monkeypatch.setattr(collect, "Collector", Collector)
    monkeypatch.setattr(rollout.checkpoint, "verify", lambda folder: None)
    words = ["--data", str(tmp_path), "--checkpoint", "c", "--out", str(tmp_path / "out"), "--prompts", "3"]
    words += ["--metrics", str(tmp_path / "m.jsonl"), "--policy-url", "p", "--reward-url", "r"]
    monkeypatch.setattr(sys, "argv", ["rollout", *words])
    bads = 1
    rollout.main()
    assert "[rollout-only] passed: 2 generations" in capsys.readouterr().out
    assert len((tmp_path / "out/generations.jsonl").read_text().splitlines()) == 2
    bads = 2
    with pytest.raises(JobError, match="33% of the answers are well-formed, 50% wanted"):
        rollout.main()
    assert made == [6, 6]


class Pool:
    """What answers in the place of a server."""

    def __init__(self, *replies: Any) -> None:
        self.replies, self.asked = list(replies), []

    def request(self, method: str, url: str, json: Any) -> Any:
        self.asked.append((method, url, json))
        reply = self.replies.pop(0)
        return SimpleNamespace(status=reply[0], data=reply[1], json=lambda: _loads(reply[1]))


def _loads(data: bytes) -> Any:
    return json.loads(data)


@pytest.mark.parametrize(
    ("reply", "cause"),
    [((404, b"no\nmodel"), "404 no model"), ((199, b""), "199"), ((300, b""), "300"), ((200, b"{"), "JSONDecodeError")],
)
def test_a_server_that_fails_is_named(reply: tuple[int, bytes], cause: str) -> None:
    server = servers.Server("reward server", "http://h:1/", 5)
    server.pool = Pool(reply)  # type: ignore[assignment]
    with pytest.raises(JobError, match=rf"^reward server http://h:1 failed at POST /score: {cause}.*see that server's"):
        server.post("/score", {})


def test_the_policy_is_asked_for_tokens_and_keeps_no_prefix() -> None:
    policy = servers.Policy("http://h:1")
    choice = {"message": {"content": None}, "token_ids": [5], "logprobs": {"content": [{"logprob": -1.5}]}}
    reply = json.dumps({"choices": [choice], "prompt_token_ids": [1, 2]}).encode()
    nothing = (200, b"{}")
    pool = Pool((200, reply), nothing, (200, b'{"success": true}'), nothing, nothing)
    policy.server.pool = pool  # type: ignore[assignment]
    (sample,) = policy.sample("q", count=1, seed=3, temperature=0.5)
    assert sample == Sample(text="", tokens=(5,), logprobs=(-1.5,), prompt_tokens=(1, 2))
    _, url, said = pool.asked[0]
    assert url == "http://h:1/v1/chat/completions"
    assert (said["n"], said["seed"], said["max_tokens"]) == (1, 3, 16)
    assert (said["logprobs"], said["return_token_ids"]) == (True, True)
    policy.load_weights(Path("/w"))
    with pytest.raises(JobError, match="kept its prefix cache"):
        policy.load_weights(Path("/w"))
