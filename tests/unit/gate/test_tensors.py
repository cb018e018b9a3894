"""A safetensors file that somebody wrote passes; one that only claims to hold tensors does not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rlbox.gate.files import find_safetensors_problem

BYTES = 1 << 20


def head(**tensors: object) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


def tensor(begin: int, end: int, dtype: str = "U8", shape: tuple[int, ...] = ()) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape or (end - begin,), "data_offsets": (begin, end)}


def test_what_was_written_passes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(head(a=tensor(0, 8, "F32", (2,)), b=tensor(8, BYTES)) + os.urandom(BYTES))
    assert find_safetensors_problem(path) == ""
    path.write_bytes(head(w=tensor(0, 4, "F32", (1,))) + bytes(4))  # one small zero is a bias
    assert find_safetensors_problem(path) == ""


def test_zeros_are_no_weights(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(head(w=tensor(0, BYTES)) + bytes(BYTES))
    assert find_safetensors_problem(path) == "holds hardly anything but zeros"
    path.write_bytes(head(w=tensor(0, BYTES)) + b"\1" + bytes(BYTES - 1))
    assert find_safetensors_problem(path) == "holds hardly anything but zeros"
    path.write_bytes(head(w=tensor(0, 0, "F32", (0,))))
    assert find_safetensors_problem(path) == "holds no tensor that has a byte"


@pytest.mark.parametrize(
    "rows",
    [
        {"w": tensor(8, 16)},
        {"w": tensor(0, 16), "v": tensor(8, 16)},
        {"w": {"dtype": "U8", "shape": (16,), "data_offsets": (0, 16, 16)}},
        {"w": {"dtype": "U8", "shape": (-16,), "data_offsets": (16, 0)}},
        {"w": None},
        {"w": {"dtype": "U8", "shape": (16,), "data_offsets": (0, float("inf"))}},
        {"w": {"dtype": "U8", "shape": ("16",), "data_offsets": ("0", "16")}},
        {"w": {"dtype": "U8", "shape": (16.9,), "data_offsets": (0, 16.2)}},
        {"w": {"dtype": "U8", "shape": (True, 16), "data_offsets": (False, 16)}},
        {"__metadata__": {"a": 1}, "w": tensor(0, 16)},
        {"__metadata__": 7, "w": tensor(0, 16)},
    ],
)
def test_claims_that_do_not_fit(tmp_path: Path, rows: dict[str, object]) -> None:
    (tmp_path / "a").write_bytes(head(**rows) + b"x" * 16)
    assert find_safetensors_problem(tmp_path / "a") == "is not a safetensors file: its header cannot be read"


def test_headers_of_hostile_making(tmp_path: Path) -> None:
    for text in (b"[" * 200_000, b'{"a": ' + b"1" * 10_000 + b"}", b"[]", b"\xff", b'{"w": {}, "w": {}}'):
        (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text)
        assert find_safetensors_problem(tmp_path / "a") == "is not a safetensors file: its header cannot be read"
