"""The reward server: computed from the request alone, strict about bad requests, honest about a taken port."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pokerkit", reason="pokerkit needs Python 3.11")

from smoke import reward
from smoke.program import JobError
from webbox import serving

JOBS = Path(__file__).parents[2] / "jobs"
SPOT = {"hole": ["Ah", "Kh"], "board": ["Qh", "Jh", "Th", "2c", "3d"], "pot": 30, "to_call": 10, "stack": 40}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    yield from serving(reward.application())


def post(url: str, body: bytes, path: str = "/score") -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data=body), timeout=30) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_scores_a_batch_in_order(url: str) -> None:
    answers = ["<action>raise</action>", "<action>fold</action>", "<action>check</action>", "hm"]
    status, reply = post(url, json.dumps({"items": [{**SPOT, "answer": text} for text in answers]}).encode())
    assert status == 200
    assert [score["reward"] for score in reply["scores"]] == [1.0, 0.0, -0.5, -1.0]
    assert [score["action"] for score in reply["scores"]] == ["raise", "fold", "check", None]
    assert reply["scores"][0]["equity"] == 1.0


def test_labels_in_the_request_change_nothing(url: str) -> None:
    lie = {**SPOT, "answer": "<action>fold</action>", "best": "fold", "equity": 0.0, "values": {"fold": 9}}
    _, reply = post(url, json.dumps({"items": [lie]}).encode())
    assert (reply["scores"][0]["reward"], reply["scores"][0]["best"]) == (0.0, "raise")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "Expecting"),
        (b"[]", 'the body must be {"items": [...]}'),
        (json.dumps({"items": [{**SPOT, "answer": "x"}, {**SPOT, "pot": 1.5}]}).encode(), "items[1]: pot"),
        (json.dumps({"items": [SPOT]}).encode(), "items[0]: answer"),
        (json.dumps({"items": [7]}).encode(), "items[0]: not a spot"),
    ],
)
def test_bad_requests_are_named(url: str, body: bytes, message: str) -> None:
    status, reply = post(url, body)
    assert status == 400
    assert message in reply["error"]


def test_other_paths_and_the_probe(url: str) -> None:
    assert post(url, b"{}", "/other")[0] == 404
    with urllib.request.urlopen(url + "/health", timeout=30) as reply:
        assert reply.status == 200


def test_taken_port_is_one_line(url: str) -> None:
    port = int(url.rsplit(":", 1)[1])
    with pytest.raises(JobError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use; free the port"):
        reward.listen(port)
    command = [sys.executable, "-m", "smoke.reward", "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(JOBS)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"smoke.reward: error: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "free the port or pass another --port"
    ]
