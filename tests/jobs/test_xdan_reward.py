"""The reward server as a process: asked as OpenRLHF asks it, and the check of the cluster that asks it, too."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdan.nodes import look

JOBS = Path(__file__).parents[2] / "jobs"
ENV = {**os.environ, "PYTHONPATH": str(JOBS), "PYTHONUNBUFFERED": "1"}
PROMPT = "<|im_start|>user\nWhat is {}+1?<|im_end|>\n<|im_start|>assistant\n"
GOOD, WRONG = "<think>t</think><answer>\\boxed{{{}}}</answer>", "<think>t</think><answer>no</answer>"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("xdan") / "problems.json"
    data.write_text(json.dumps([{"message": f"What is {n}+1?", "answer": str(n + 1)} for n in range(50)]))
    argv = (sys.executable, "-m", "xdan.reward", "--dataset", data, "--input_key", "message", "--port", "0")
    with subprocess.Popen(
        (*argv, "--prompt-template", "chatml", "--workers", "1"), stdout=subprocess.PIPE, text=True, env=ENV
    ) as server:
        assert server.stdout
        line = server.stdout.readline()
        found = re.search(r"50 problems, .*; ready on (http://127\.0\.0\.1:\d+)", line)
        assert found, line
        yield found.group(1)
        server.terminate()


def post(address: str, body: Any, path: str = "/get_reward") -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data=data, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def query(n: int, response: str) -> str:
    return f"<|endoftext|><|endoftext|>{PROMPT.format(n)}{response}<|im_end|><|endoftext|>"


def test_rewards_form_and_answer_in_order(url: str) -> None:
    responses = [GOOD.format(1), WRONG, "\\boxed{1}", "nothing"]
    body = {"query": [query(0, text) for text in responses], "prompts": [PROMPT.format(0)] * 4, "labels": [""] * 4}
    assert post(url, body) == (200, {"rewards": [1.5, 0.5, 1.0, 0.0], "scores": [1.0, 0.0, 1.0, 0.0]})


def test_queries_alone_are_enough_and_a_label_wins(url: str) -> None:
    assert post(url, {"query": [query(4, GOOD.format(5))]})[1]["rewards"] == [1.5]
    other = {"query": ["Q: 2*2? <|im_start|>assistant\n\\boxed{4}"], "prompts": ["Q: 2*2? "], "labels": ["4"]}
    assert post(url, other)[1]["rewards"] == [1.0]


def test_nothing_is_guessed(url: str) -> None:
    status, reply = post(url, {"query": [query(0, "x"), query(77, "x")]})
    assert status == 422
    assert reply["error"].startswith("query[1] has no label and is no problem of the data set")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "Expecting"),
        ([], 'the body must be {"query"'),
        ({"query": ["a", "b"], "prompts": ["a"]}, "prompts: must be a list as long as query"),
        ({"query": [1]}, "query: must hold texts"),
    ],
)
def test_bad_requests_are_named(url: str, body: Any, message: str) -> None:
    status, reply = post(url, body)
    assert status == 400
    assert message in reply["error"]


def test_probes(url: str) -> None:
    with urllib.request.urlopen(url + "/health_check", timeout=30) as reply:
        assert json.load(reply) == {"status": "ready", "problems": 50}
    assert post(url, {"query": [], "prompts": [], "labels": []}) == (200, {"rewards": [], "scores": []})
    assert post(url, {}, "/other")[0] == 404


def test_a_taken_port_is_one_line(url: str, tmp_path: Path) -> None:
    data = tmp_path / "a.jsonl"
    data.write_text('{"message": "q", "answer": "1"}\n')
    port = url.rpartition(":")[2]
    argv = (sys.executable, "-m", "xdan.reward", "--dataset", data, "--port", port)
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=ENV, check=False)
    assert ended.returncode == 1
    assert ended.stderr == (
        f"xdan.reward: error: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "free the port or pass another --port\n"
    )


def test_the_prompts_are_written_whole(tmp_path: Path) -> None:
    data = tmp_path / "a.jsonl"
    data.write_text('{"message": "q", "answer": "1"}\n')
    argv = (sys.executable, "-m", "xdan.data", "--dataset", data, "--out", tmp_path / "out")
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=ENV, check=False)
    assert ended.stdout == f"[xdan][data] 1 prompts in {tmp_path / 'out/prompts.jsonl'}\n", ended.stderr
    assert json.loads((tmp_path / "out/prompts.jsonl").read_text()) == {
        "message": "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n",
        "label": "1",
    }


def test_a_node_says_what_it_lacks(url: str, tmp_path: Path) -> None:
    assert look((str(tmp_path),), url + "/get_reward")["problems"] == []
    missing = str(tmp_path / "model")
    problems = look((missing,), "http://127.0.0.1:1/get_reward")["problems"]
    assert problems[0] == f"{missing} is not there"
    assert problems[1].startswith("http://127.0.0.1:1/get_reward does not answer: ")
    assert "does not answer" in look((), url + "/other")["problems"][0]
