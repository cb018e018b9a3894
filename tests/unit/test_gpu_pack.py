"""Folders carried in parts: shared files once, differences from the machine's own, and what arrived wrong is named."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fakes import CHECKOUT


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_pack", CHECKOUT / "tests/gpu/pack.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its own module up
    spec.loader.exec_module(module)
    return module


PACK = script()


SHARED = bytes(range(256)) * 40


def rows(stack: str, machine: Path) -> list[Any]:
    other = bytes(reversed(SHARED)) * 30
    return [
        PACK.Row(path="pkg/same.bin", data=lambda: SHARED),
        PACK.Row(path="pkg/own.py", mode=0o755, data=lambda: f"name = {stack!r}\n".encode()),
        PACK.Row(path="pkg/empty.py", data=lambda: b""),
        PACK.Row(path="pkg/link", to="own.py"),
        PACK.Row(path="pkg/there.so", base="machine/there.so", sha256=hashlib.sha256(other).hexdigest()),
        PACK.Row(
            path="pkg/near.so",
            data=lambda: other + stack.encode(),
            base="machine/there.so",
            base_data=(machine / "there.so").read_bytes,
        ),
    ]


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    machine = tmp_path / "machine"
    machine.mkdir()
    (machine / "there.so").write_bytes(bytes(reversed(SHARED)) * 30)
    PACK.pack({"one": rows("one", machine), "two": rows("two", machine)}, tmp_path / "out", 200)
    return tmp_path / "out"


def test_a_folder_comes_out_of_the_parts_so_far(packed: Path, tmp_path: Path) -> None:
    goal, machine = tmp_path / "goal", tmp_path / "machine"
    last = json.loads((packed / "parts.json").read_text())["places"]["two"][1] // 200
    late = packed / f"part-{last:02}"
    late.rename(tmp_path / late.name)
    assert PACK.unpack(packed, goal, "one", machine) == 6
    with pytest.raises(PACK.PackError, match=r"part-\d+ did not arrive"):
        PACK.unpack(packed, goal, "two", machine)
    (tmp_path / late.name).rename(late)
    assert PACK.unpack(packed, goal, "two", machine) == 6
    assert PACK.unpack(packed, goal, "two", machine) == 6
    assert (goal / "two/pkg/link").read_text() == "name = 'two'\n"
    assert (goal / "two/pkg/same.bin").read_bytes() == SHARED
    assert (goal / "two/pkg/own.py").stat().st_mode & 0o777 == 0o755
    assert (goal / "two/pkg/there.so").read_bytes() == (machine / "there.so").read_bytes()
    assert (goal / "two/pkg/near.so").read_bytes() == (machine / "there.so").read_bytes() + b"two"
    assert (packed / "streams/two").stat().st_size < 2000


def test_another_file_of_the_machine_is_named(packed: Path, tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    digest = hashlib.sha256((machine / "there.so").read_bytes()).hexdigest()
    assert PACK.lacking({"there.so": digest}, machine) == []
    (machine / "there.so").write_bytes(b"another")
    assert PACK.lacking({"there.so": digest}, machine) == ["there.so"]
    with pytest.raises(PACK.PackError, match=r"machine/there\.so is another file"):
        PACK.unpack(packed, tmp_path / "goal", "one", machine)


def test_a_part_that_is_cut_is_named(packed: Path, tmp_path: Path) -> None:
    part = packed / "part-00"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(PACK.PackError, match="part-00 is cut, or another pack's"):
        PACK.unpack(packed, tmp_path / "goal", "one", tmp_path / "machine")
    with pytest.raises(PACK.PackError, match="no folder three; it holds one, two"):
        PACK.arrived(packed, "three")


def entry(kind: int, arch: int, body: bytes) -> bytes:
    return struct.pack("<HHIQ", kind, 0, 64, len(body)) + bytes(12) + struct.pack("<I", arch) + bytes(32) + body


def test_code_of_other_gpus_is_emptied_and_nothing_moves() -> None:
    rows = entry(2, 80, b"A" * 16) + entry(2, 90, b"H" * 16) + entry(1, 90, b"P" * 16)
    data = bytearray(b"ELF" + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(rows)) + rows + b"end")
    size = len(data)
    assert PACK.thin(data, 90) == 32
    assert (len(data), b"A" in data, b"H" * 16 in data, b"P" * 16 in data) == (size, False, True, False)
