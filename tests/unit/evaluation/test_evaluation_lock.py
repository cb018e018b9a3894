"""The evaluation lock: every field counts, and a change is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlbox.evaluation.lock import EvaluationLock, diff_locks, exclude_allowed_differences, parse_lock

PARTS: dict[str, Any] = {
    "suites": {"humaneval": {"problems": 164, "sha256": "aa"}},
    "prompts": {"sha256": "bb"},
    "tokenizer": {"sha256": "cc", "chat_template": "dd"},
    "decoding": {"temperature": 0.0, "top_p": 1.0, "max_tokens": 2048, "stop": []},
    "engine": {"version": "0.12.0", "settings": {"eager": True}},
    "extraction": {"sha256": "ee"},
    "sandbox": {"strength": "landlock+seccomp", "version": "1", "run_timeout_s": 30, "memory_bytes": 1 << 30},
    "scoring": {"sha256": "ff"},
}
LOCK = EvaluationLock(parts=PARTS, subject={"weights": "11"})


def test_a_field_is_noticed_and_named() -> None:
    other = EvaluationLock(parts=PARTS | {"decoding": PARTS["decoding"] | {"stop": ["x"]}}, subject=LOCK.subject)
    assert other.digest_without_weights != LOCK.digest_without_weights
    assert [(change.field, change.first, change.second) for change in diff_locks(LOCK, other)] == [
        ("decoding.stop", [], ["x"])
    ]


def test_the_weights_are_what_is_compared() -> None:
    other = EvaluationLock(parts=PARTS, subject={"weights": "22"})
    assert other.digest_without_weights == LOCK.digest_without_weights
    assert not diff_locks(LOCK, other)


def test_a_field_of_one_alone_is_named() -> None:
    other = EvaluationLock(parts=PARTS | {"more": {"field": 1}}, subject={})
    assert [(change.field, change.first, change.second) for change in diff_locks(LOCK, other)] == [
        ("more.field", None, 1)
    ]


def test_across_allows_a_field_or_all_below_it() -> None:
    engine = PARTS["engine"] | {"version": "0.24.0", "max_model_len": 64}
    found = diff_locks(LOCK, EvaluationLock(parts=PARTS | {"engine": engine}, subject={}))
    assert [one.field for one in exclude_allowed_differences(found, ["engine.version"])] == ["engine.max_model_len"]
    assert not exclude_allowed_differences(found, ["engine"])
    assert len(exclude_allowed_differences(found, ["eng"])) == 2


def test_it_is_read_as_it_was_written() -> None:
    document = json.loads(json.dumps(LOCK.as_json()))
    assert parse_lock(document) == LOCK


@pytest.mark.parametrize(
    "document", [None, [], {}, {"schema": 1}, {"schema": 2, "parts": PARTS}, {"schema": 1, "parts": {}}]
)
def test_what_is_no_lock_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match="evaluation fingerprint"):
        parse_lock(document)


def test_a_lock_that_was_changed_is_refused() -> None:
    document = LOCK.as_json()
    document["parts"] = PARTS | {"decoding": PARTS["decoding"] | {"temperature": 0.5}}
    with pytest.raises(ValueError, match="changed"):
        parse_lock(document)
