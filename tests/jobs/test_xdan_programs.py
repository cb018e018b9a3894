"""The programs of `xdan`, in this process: answers, prompts, the judge, the wait for the cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import urllib3
from webbox import serving
from xdan import answers, nodes, reward
from xdan.chat import TEMPLATES, prompt_of, render, response_in
from xdan.data import Problem, read_problems
from xdan.program import JobError

CHATML, BASE = TEMPLATES["chatml"], TEMPLATES["base"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1/0", None), ("1/2/3", None), ("1/x", None), ("x", None), ("3/4", "3/4"), ("12%", "3/25"), ("x=7", "7"),
        ("-1,234.5", "-2469/2"), ("0/2", "0"), ("1/2%", "1/200"), ("5", "5"), ("1/2/x", None),
    ],
)  # fmt: skip
def test_numbers(text: str, number: str | None) -> None:
    assert (str(answers.number(text)) if answers.number(text) is not None else None) == number


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("(x)", "x"), ("(x)(y)", "(x)(y)"), ("(1,2)", "(1,2)"), ("A.", "a"),
        ("\\boxed{Y}", "y"), ("\\frac12", "1/2"), ("2\\cdot3", "2*3"),
    ],
)  # fmt: skip
def test_plain_forms(text: str, plain: str) -> None:
    assert answers.plain(text) == plain


def test_two_answers() -> None:
    assert not answers.same_plainly("", "")
    assert not answers.same_plainly("2", "")
    assert not answers.same_plainly("", "2")
    assert not answers.same_plainly("$", "$")  # nothing is left of either
    assert not answers.same_plainly("x", "y")
    assert not answers.same_plainly("2", "x")
    assert answers.same_plainly("4/2", "2")


def test_the_form() -> None:
    good = "<think>a</think> <answer>b</answer>"
    assert answers.well_formed(good)
    assert not answers.well_formed(good + "x")
    assert not answers.well_formed("<think>a</think><answer>b</answer><answer>c</answer>")
    assert not answers.well_formed("<answer>b</answer>")


def test_boxes() -> None:
    assert answers.final_answer("\\boxed{a{b}c}") == "a{b}c"
    assert answers.final_answer("\\boxed{1}") == "1"
    assert answers.final_answer("\\boxed{1} <answer>no</answer>") == "no"
    assert answers.final_answer("x\\boxed{1} \\boxed{2} }") == "2"


def test_algebra_is_asked_when_both_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    module, asked = ModuleType("math_verify"), []

    def verify(wanted: Any, given: Any) -> bool:
        asked.append((wanted, given))
        return wanted == given

    module.LatexExtractionConfig = object  # type: ignore[attr-defined]
    module.parse = lambda text, extraction_config: text.strip("$").replace("?", "")  # type: ignore[attr-defined]
    module.verify = verify  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "math_verify", module)
    assert answers.same_by_algebra(("a", "$a$"))
    assert not answers.same_by_algebra(("a", "b"))
    assert len(asked) == 2
    assert not answers.same_by_algebra(("?", "?"))
    assert not answers.same_by_algebra(("?", "a"))
    assert not answers.same_by_algebra(("a", "?"))
    assert len(asked) == 2
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not answers.knows_algebra()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert answers.knows_algebra()


USER, SAID = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("message", "prompt"),
    [
        ("q", "User: q\n\nAssistant: "),
        ("User: q\n\nAssistant: ", "User: q\n\nAssistant: "),
        (json.dumps([USER, SAID]), "User: q\n\nAssistant: "),
        ([USER, SAID, SAID], "User: q\n\nAssistant: "),
        ([{"role": "system", "content": "s"}, USER, SAID, {**USER, "content": "r"}], "User: r\n\nAssistant: "),
        ("[1, 2]", "User: [1, 2]\n\nAssistant: "),
        ("[]", "User: []\n\nAssistant: "),
        ("[x", "User: [x\n\nAssistant: "),
        ('{"0": {"role": "user"}}', 'User: {"0": {"role": "user"}}\n\nAssistant: '),
    ],
)
def test_prompts(message: Any, prompt: str) -> None:
    assert prompt_of(message, BASE) == prompt


def test_what_is_no_prompt() -> None:
    with pytest.raises(ValueError, match="no turn of role 'user'"):
        render([SAID], BASE)
    with pytest.raises(ValueError, match="neither text nor"):
        prompt_of(7, BASE)
    assert "<|im_start|>system\ns<|im_end|>" in render([{"role": "system", "content": "s"}, USER], CHATML)
    assert "system" not in render([{"role": "system", "content": "s"}, USER], BASE)


def test_where_a_response_begins() -> None:
    assert response_in("pad P: yes <|im_end|>", "P:", BASE) == "yes"
    assert response_in("P: yes", "P:", BASE) == "yes"
    assert response_in("other Assistant: yes", "P:", BASE) == "yes"
    assert response_in("other yes", "", BASE) == "other yes"


def test_rows_of_a_data_set(tmp_path: Path) -> None:
    words = {"input_key": "message", "answer_key": "answer", "template": BASE}
    path = tmp_path / "a.jsonl"
    path.write_text('{"message": "q", "answer": 1}\n\n{"message": "q", "answer": 2}\n')
    assert [found.answer for found in read_problems(path, **words)] == ["1"]  # type: ignore[arg-type]
    for text, problem in (
        ('{"message": "q", "answer": " "}', "row 1 has an empty 'answer'"),
        ('{"message": "q", "x": 1}', "row 1 has no key 'answer'; its keys: message, x"),
        ("{}", "its keys: none"),
        ("", "holds no row"),
    ):
        path.write_text(text)
        with pytest.raises(JobError, match=problem):
            read_problems(path, **words)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------- rewards


class Pool:
    """Algebra that knows one pair."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def map(self, call: Any, pairs: list[Any], chunksize: int) -> list[bool]:
        self.asked.append(pairs)
        return [pair == ("1+x", "x+1") for pair in pairs]


GOOD = "<think>t</think><answer>{}</answer>"


def query(asked: str, said: str) -> str:
    return f"<|endoftext|>User: {asked}\n\nAssistant: {said}"


def test_a_right_answer_earns_one_point_and_the_form_a_half() -> None:
    pool = Pool()
    judge = reward.Judge([Problem(prompt="User: q\n\nAssistant: ", answer="x+1")], BASE, pool)  # type: ignore[arg-type]
    said = [GOOD.format("x+1"), "\\boxed{x+1}", GOOD.format("1+x"), GOOD.format("2"), "nothing"]
    found = judge.rewards({"query": [query("q", each) for each in said]})
    assert found == {"rewards": [1.5, 1.0, 1.5, 0.5, 0.0], "scores": [1.0, 1.0, 1.0, 0.0, 0.0]}
    assert pool.asked == [[("1+x", "x+1"), ("2", "x+1")]]  # not what is the same, nor what is empty
    judge.rewards({"query": [query("q", GOOD.format("x+1"))]})
    assert len(pool.asked) == 1
    assert len(judge) == 1
    plain = reward.Judge([Problem(prompt="User: q\n\nAssistant: ", answer="x+1")], BASE, None)
    assert plain.rewards({"query": [query("q", GOOD.format("1+x"))]})["scores"] == [0.0]


def test_where_the_right_answer_comes_from() -> None:
    judge = reward.Judge([Problem(prompt="User: q\n\nAssistant: ", answer="1")], BASE, None)
    for more, score in (({}, 1.0), ({"labels": ["2"]}, 0.0), ({"labels": [""]}, 1.0), ({"prompts": None}, 1.0)):
        assert judge.rewards({"query": [query("q", "\\boxed{1}")], **more})["scores"] == [score]
    by_prompt = {"query": ["other \\boxed{1}"], "prompts": ["User: q\n\nAssistant: "]}
    assert judge.rewards(by_prompt)["scores"] == [1.0]
    for unknown in ({"query": ["no form"]}, {"query": [query("r", "x")]}):
        with pytest.raises(reward.UnknownProblem, match=r"query\[0\] has no label"):
            judge.rewards(unknown)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ([], "the body must be"), ({}, "the body must be"), ({"query": "x"}, "the body must be"),
        ({"query": ["a"], "labels": "b"}, "labels: must be a list as long"),
        ({"query": ["a"], "labels": ["b", "c"]}, "labels: must be a list as long"),
        ({"query": ["a"], "labels": [1]}, "labels: must hold texts"),
    ],
)  # fmt: skip
def test_what_is_no_batch(body: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        reward.Judge([], BASE, None).rewards(body)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    assert reward.LARGEST_BODY == 1 << 30
    monkeypatch.setattr(reward, "LARGEST_BODY", 20)
    yield from serving(reward.application(reward.Judge([], BASE, None)))


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/get_reward", b'{"query": []}', 200), ("/get_reward", b'{"query": []}       ', 200),
        ("/get_reward", b'{"query": []}        ', 413), ("/get_reward", [b"{", b"}"], 413), ("/get_reward", b"{", 400),
        ("/get_reward", b'{"query": ["q"]}', 422), ("/get", b"{}", 404), ("/health_check", b"{}", 404),
    ],
)  # fmt: skip
def test_what_the_server_answers(url: str, path: str, body: Any, status: int) -> None:
    reply = urllib3.request("POST", url + path, body=body, retries=False)
    assert reply.status == status
    if status == 413:
        assert reply.json() == {"error": "Content-Length must be 0 to 20"}
    if status == 404:
        assert reply.json() == {"error": f"no such path: {path}"}


def test_a_dead_process_of_algebra_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(request: Any) -> Any:
        raise BrokenExecutor("gone")

    judge = SimpleNamespace(rewards=broken)
    reply = reward._judged(judge, b"{}")  # type: ignore[arg-type]
    assert (reply.status_code, json.loads(reply.body)) == (500, {"error": "a process for algebra died: gone"})
    ended: list[int] = []
    monkeypatch.setattr(reward.os, "_exit", ended.append)
    reply.background.func()
    assert ended == [1]


# ------------------------------------------------------------------------------------------------------------- cluster


def node(name: str = "a", gpus: float = 8.0, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "NodeManagerHostname": name, "Resources": {"GPU": gpus}, "NodeID": name}


def test_what_a_cluster_has() -> None:
    assert nodes.lacking([node()], 1, 8) == ""
    assert nodes.lacking([node(), node("b")], 1, 8) == ""
    assert nodes.lacking([node()], 2, 8) == "1 of 2 nodes, 8 of 8 GPUs (a)"
    assert nodes.lacking([node(gpus=7)], 1, 8) == "1 of 1 nodes, 7 of 8 GPUs (a)"


class Ray(ModuleType):
    """Ray as the check uses it: the nodes come one after another, every task is done here."""

    def __init__(self, *seen: list[dict[str, Any]]) -> None:
        super().__init__("ray")
        self.seen = list(seen)
        self.remote = lambda **options: (
            lambda call: SimpleNamespace(options=lambda scheduling_strategy: SimpleNamespace(remote=call))
        )
        self.get = lambda asked, timeout: asked
        self.init = lambda **words: None
        self.get_runtime_context = lambda: SimpleNamespace(gcs_address="10.0.0.1:8100")

    def nodes(self) -> list[dict[str, Any]]:
        return self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]


def cluster(monkeypatch: pytest.MonkeyPatch, *seen: list[dict[str, Any]]) -> None:
    strategies = ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node, soft: node  # type: ignore[attr-defined]
    for module in (Ray(*seen), ModuleType("ray.util"), strategies):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(nodes.time, "sleep", lambda seconds: None)


def test_the_wait_says_each_change_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cluster(monkeypatch, [], [], [node()], [node(), node("b")])
    assert len(nodes.wait(2, 16, 60)) == 2
    assert capsys.readouterr().out.splitlines() == [
        "[xdan][nodes] waiting: 0 of 2 nodes, 0 of 16 GPUs (none)",
        "[xdan][nodes] waiting: 1 of 2 nodes, 8 of 16 GPUs (a)",
    ]
    cluster(monkeypatch, [node()])
    with pytest.raises(JobError, match=r"after 0 s; on each worker: ray-start worker --address=10\.0\.0\.1:8100"):
        nodes.wait(2, 16, 0)


@pytest.mark.parametrize(("problems", "fails"), [([], False), (["no disk"], True)])
def test_every_node_must_be_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], problems: list[str], fails: bool
) -> None:
    cluster(monkeypatch, [node()])
    monkeypatch.setattr(nodes, "look", lambda paths, url: {"host": "a", "problems": problems})
    monkeypatch.setattr(sys, "argv", ["nodes", "--nodes", "1", "--gpus", "8", "--url", "u", "path"])
    if fails:
        with pytest.raises(JobError, match="a: no disk"):
            nodes.main()
    else:
        nodes.main()
    out = capsys.readouterr().out
    assert (f"[xdan][nodes] a: {'; '.join(problems) or 'fit'}" in out, "passed: 1 nodes" in out) == (True, not fails)


def test_the_attention_that_was_asked_for_must_be_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """flash-attn-4 lays a folder `flash_attn`, too: what is asked for is the module that transformers imports."""
    cluster(monkeypatch, [node()])
    monkeypatch.setattr(nodes, "look", lambda paths, url: {"host": "a", "problems": []})
    words = ["nodes", "--nodes", "1", "--gpus", "8", "--url", "u", "--attention"]
    monkeypatch.setattr(sys, "argv", [*words, "sdpa"])
    nodes.main()
    monkeypatch.setattr(sys, "argv", [*words, "flash_attention_2"])
    package, interface = ModuleType("flash_attn"), ModuleType("flash_attn.flash_attn_interface")
    package.__path__, package.__version__ = [], "2.8.3"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    with pytest.raises(JobError, match="a: FlashAttention 2 is not in the environment"):
        nodes.main()
    interface.flash_attn_func = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    nodes.main()
    told = [line for line in capsys.readouterr().out.splitlines() if "attention" in line and "fit" not in line]
    assert told[0] == "[xdan][nodes] attention sdpa"
    assert told[-1] == "[xdan][nodes] attention flash_attention_2, flash-attn 2.8.3"


def test_a_server_of_another_kind_is_named() -> None:
    for url in serving(reward.application(reward.Judge([], BASE, None))):
        assert nodes.look((), url + "/get_reward")["problems"] == []
        assert "does not answer" in nodes.look((), url + "/other")["problems"][0]
    from fastapi import FastAPI

    app = FastAPI()
    app.post("/get_reward")(lambda: {"other": 1})
    for url in serving(app):
        assert nodes.look((), url + "/get_reward")["problems"] == [
            f"{url}/get_reward answers, but not as a reward server"
        ]


def test_the_gap_of_each_update_is_read_and_a_missing_one_named() -> None:
    from xdan.gap import gaps
    from xdan.program import JobError

    lines = ["Global step 1: {'kl': 0.0, 'vllm_kl': -0.0002, 'reward': 0.5}", "else", "Global step 2: {'vllm_kl': nan}"]
    assert list(gaps(iter(lines))) == [(1, "-0.0002"), (2, "nan")]
    with pytest.raises(JobError, match="step 3 has no vllm_kl"):
        list(gaps(iter(["Global step 3: {'kl': 0.0}"])))
