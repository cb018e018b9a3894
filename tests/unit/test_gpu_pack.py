"""Stacks carried in parts: shared files once, a stack out of the parts so far, and what arrived wrong is named."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from types import ModuleType

import pytest
from fakes import CHECKOUT


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_pack", CHECKOUT / "tests/gpu/pack.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PACK = script()


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    shared = bytes(range(256)) * 40
    for stack in ("one", "two"):
        (tmp_path / stack / "pkg").mkdir(parents=True)
        (tmp_path / stack / "pkg/same.bin").write_bytes(shared)
        (tmp_path / stack / "pkg/own.py").write_text(f"name = {stack!r}\n")
        (tmp_path / stack / "pkg/empty.py").touch()
    PACK.pack({"one": tmp_path / "one", "two": tmp_path / "two"}, tmp_path / "out", 60)
    return tmp_path / "out"


def test_a_stack_comes_out_of_the_parts_so_far(packed: Path, tmp_path: Path) -> None:
    first = len(PACK.arrived(packed, "one"))
    assert first < len(PACK.arrived(packed, "two"))
    for path in sorted(packed.glob("part-*"))[first:]:
        path.rename(tmp_path / path.name)
    assert PACK.unpack(packed, tmp_path / "goal", "one") == 3
    with pytest.raises(PACK.PackError, match=r"part-\d+ did not arrive"):
        PACK.unpack(packed, tmp_path / "goal", "two")
    for path in tmp_path.glob("part-*"):
        path.rename(packed / path.name)
    assert PACK.unpack(packed, tmp_path / "goal", "two") == 3
    assert PACK.unpack(packed, tmp_path / "goal", "two") == 3
    assert (tmp_path / "goal/two/pkg/own.py").read_text() == "name = 'two'\n"
    assert (tmp_path / "goal/two/pkg/same.bin").read_bytes() == bytes(range(256)) * 40


def test_a_part_that_is_cut_is_named(packed: Path, tmp_path: Path) -> None:
    part = packed / "part-00"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(PACK.PackError, match="part-00 is cut, or another pack's"):
        PACK.unpack(packed, tmp_path / "goal", "one")
    with pytest.raises(PACK.PackError, match="no stack three; it holds one, two"):
        PACK.arrived(packed, "three")


def entry(kind: int, arch: int, body: bytes) -> bytes:
    return struct.pack("<HHIQ", kind, 0, 64, len(body)) + bytes(12) + struct.pack("<I", arch) + bytes(32) + body


def test_code_of_other_gpus_is_emptied_and_nothing_moves() -> None:
    rows = entry(2, 80, b"A" * 16) + entry(2, 90, b"H" * 16) + entry(1, 90, b"P" * 16)
    data = bytearray(b"ELF" + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(rows)) + rows + b"end")
    size = len(data)
    assert PACK.thin(data, 90) == 32
    assert (len(data), b"A" in data, b"H" * 16 in data, b"P" * 16 in data) == (size, False, True, False)
