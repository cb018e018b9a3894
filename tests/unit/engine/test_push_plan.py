"""What engines say while they push: layers, counts, and which failures are worth repeating."""

from __future__ import annotations

import json

import pytest
from fakes import load_cases

from rlbox.engine.oci import Descriptor
from rlbox.engine.push import (
    PushLog,
    create_push_error,
    find_pushed_blob_bytes_by_digest,
    is_push_error_retryable,
)
from rlbox.engine.reference import ImageReference

CASES = load_cases("engine", "test_push_plan")
A, B = ("sha256:" + sign * 64 for sign in "ab")
CONTENT_A, CONTENT_B = ("sha256:" + sign * 64 for sign in "cd")
STORED = (Descriptor(media_type="l", digest=A, size=700), Descriptor(media_type="l", digest=B, size=30))
REFERENCE = ImageReference(host="registry.example", repository="team/x", tag="1")

# As Docker 26.1.5 (containerd store) and 20.10.24 say it.
DOCKER_26 = f"""
{{"status":"The push refers to repository [127.0.0.1:5000/t/exp]"}}
{{"status":"Pushing","progressDetail":{{"current":30,"total":30}},"progress":"[=>] 30B/30B","id":"{B[7:19]}"}}
{{"status":"Pushing","progressDetail":{{"current":512,"total":700}},"progress":"[=> ] 512B/700B","id":"{A[7:19]}"}}
{{"status":"Pushed","progressDetail":{{}},"id":"{A[7:19]}"}}
{{"status":"Layer already exists","progressDetail":{{}},"id":"{B[7:19]}"}}
{{"status":"1: digest: {A} size: 1056"}}
"""
DOCKER_20 = f"""
{{"status":"The push refers to repository [10.231.0.1:5000/t/old]"}}
{{"status":"Preparing","progressDetail":{{}},"id":"{CONTENT_A[7:19]}"}}
{{"status":"Preparing","progressDetail":{{}},"id":"{CONTENT_B[7:19]}"}}
{{"status":"Pushing","progressDetail":{{"current":1024,"total":900}},"progress":"[=>] 1kB","id":"{CONTENT_A[7:19]}"}}
{{"status":"Mounted from t/other","progressDetail":{{}},"id":"{CONTENT_B[7:19]}"}}
{{"status":"Pushed","progressDetail":{{}},"id":"{CONTENT_A[7:19]}"}}
{{"status":"1: digest: {A} size: 1160"}}
{{"progressDetail":{{}},"aux":{{"Tag":"1","Digest":"{A}","Size":1160}}}}
"""


def followed(text: str, log: PushLog | None = None) -> PushLog:
    log = log or PushLog()
    for line in text.strip().splitlines():
        log.record_message(json.loads(line))
    return log


@pytest.mark.parametrize("text", [DOCKER_26, DOCKER_20], ids=["26", "20.10"])
def test_a_push_is_followed_and_counted(text: str) -> None:
    log = followed(text)
    assert (log.digest, log.error) == (A, "")
    assert sorted(layer.mark for layer in log.layers.values()) == ["=", "✓"]
    assert find_pushed_blob_bytes_by_digest(log.pushed_layer_ids, STORED, [CONTENT_A, CONTENT_B]) == {A: 700}


def test_what_a_first_attempt_sent_still_counts_after_a_second() -> None:
    log = followed(DOCKER_26)
    followed(DOCKER_26.replace("Pushed", "Layer already exists"), log)
    assert log.layers[A[7:19]].mark == "✓"
    assert log.pushed_layer_ids == {A[7:19]}


PASSING = CASES["PASSING"]
LASTING = CASES["LASTING"]


@pytest.mark.parametrize("words", PASSING)
def test_a_failure_that_may_pass(words: str) -> None:
    assert is_push_error_retryable(words)
    error = create_push_error(words, REFERENCE)
    assert error.what == f"the push failed 4 times\n  | {words}"
    assert (error.where, error.exit_code) == ("registry.example/team/x:1", 6)


@pytest.mark.parametrize(("words", "what", "step"), LASTING)
def test_a_failure_that_stays(words: str, what: str, step: str) -> None:
    assert not is_push_error_retryable(words)
    error = create_push_error(words, REFERENCE)
    assert what in error.what.splitlines()[0]
    assert error.what.splitlines()[1] == f"  | {words}"
    assert error.next_step.startswith(step)


def test_an_error_ends_a_push() -> None:
    log = PushLog()
    log.record_message({"errorDetail": {"message": "denied"}, "error": "denied"})
    assert log.error == "denied"
