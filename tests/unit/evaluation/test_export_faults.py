"""Tokenizers and configurations that are the same, though written otherwise, and such that are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlbox.evaluation.export_check import compare_configs, describe_tensor_fault
from rlbox.evaluation.tokenizer_diff import compare_tokenizers, parse_tokenizer

WHOLE: dict[str, Any] = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    "added_tokens": [{"id": 3, "content": "<eos>", "special": True}],
    "pre_tokenizer": {"type": "ByteLevel"},
}
SETTINGS: dict[str, Any] = {"eos_token": "<eos>", "chat_template": "{{ x }}\n"}


def told(one: dict[str, bytes], other: dict[str, bytes]) -> dict[str, str]:
    return dict(compare_tokenizers(parse_tokenizer(one), parse_tokenizer(other)))


def files(whole: dict[str, Any] = WHOLE, settings: dict[str, Any] = SETTINGS, **more: bytes) -> dict[str, bytes]:
    found = {"tokenizer.json": json.dumps(whole).encode(), "tokenizer_config.json": json.dumps(settings).encode()}
    return {**found, **{name.replace("__", "."): data for name, data in more.items()}}


@pytest.mark.parametrize(
    "other",
    [
        files(),
        files(WHOLE | {"model": WHOLE["model"] | {"merges": [["a", "b"]]}}),  # as tokenizers 0.20 writes them
        files(WHOLE | {"padding": {"strategy": "BatchLongest"}, "truncation": {"max_length": 9}}),
        files(settings=SETTINGS | {"pad_token": "<eos>", "eos_token": {"content": "<eos>", "lstrip": False}}),
        files(settings={"eos_token": "<eos>"}, chat_template__jinja=b"{{ x }}"),
        {"vocab.json": b'{"a": 0, "b": 1, "ab": 2}', "merges.txt": b"#version: 0.2\na b\n"}
        | {"tokenizer_config.json": json.dumps(SETTINGS).encode()},
    ],
)
def test_the_same_tokenizer_written_otherwise_is_the_same(other: dict[str, bytes]) -> None:
    assert told(other, files()) == {}
    assert told(files(), other) == {}


def test_another_tokenizer_is_told_by_its_part() -> None:
    assert told({}, files()) == {"tokenizer": "the export has none"}
    other = files(WHOLE | {"model": WHOLE["model"] | {"vocab": {"a": 1, "b": 0, "ab": 2}}})
    assert told(other, files()) == {"vocabulary": "2 of 3 differ; 'a' is 1, not 0"}
    assert "added tokens" in told(files(WHOLE | {"added_tokens": []}), files())
    assert told(files(WHOLE | {"normalizer": {"type": "NFC"}}), files()) == {"normalizer": '{"type": "NFC"}, not null'}
    assert told(files(settings=SETTINGS | {"eos_token": "a"}), files()) == {"eos_token": "'a', not '<eos>'"}
    assert told(files(settings={"eos_token": "<eos>"}), files()) == {"chat template": "the export has none"}
    assert told({"tokenizer.model": b"x"}, {"tokenizer.model": b"y"}) == {"tokenizer.model": "other bytes"}


def test_keys_that_decide_nothing_may_differ() -> None:
    own = {
        "hidden_size": 4,
        "use_cache": True,
        "dtype": "float32",
        "rope": {"theta": 1, "type": "x"},
        "eos_token_id": 1,
    }
    other = own | {"use_cache": False, "dtype": "bfloat16", "eos_token_id": 2, "layer_types": []}
    assert list(compare_configs(other, own)) == []
    (fault,) = compare_configs(other | {"rope": {"theta": 2, "type": "x"}}, own)
    assert (fault.of, fault.says) == ("config.json: rope.theta", "2, not 1")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"kind": "differs", "wrong": 1, "numbers": 2, "cut": True}, "1 of 2 numbers differ; it was cut, not rounded"),
        ({"kind": "dtype", "got": "float16", "own": "float32", "named": ""}, "and no cast is named"),
        ({"kind": "gone", "file": "x"}, "the index names it, and it is not there"),
        ({"kind": "stale", "file": "x", "why": "beside"}, "weights of another form beside the safetensors"),
        ({"kind": "misplaced", "file": "x", "tensor": "w"}, "it holds w, for which the index names another"),
        ({"kind": "extra", "tensor": "w"}, "the trainer has no such tensor"),
        ({"kind": "unread", "tensor": "w", "why": "w is placed as Partial"}, "w is placed as Partial"),
    ],
)
def test_each_kind_of_fault_has_its_sentence(row: dict[str, Any], says: str) -> None:
    assert says in describe_tensor_fault({"step": "fault", **row}).says
