"""Whether a safetensors file is whole: its header says where each tensor lies, and something was written there."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import BinaryIO

from rlbox.foreign import parse_json

_HEADER_LIMIT = 100_000_000
"""Bytes of a safetensors header. Source: huggingface/safetensors, `MAX_HEADER_SIZE`."""
_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Bits of an element. Source: huggingface/safetensors, `Dtype`."""
_SPOTS = 64
_SPOT_BYTES = 4096
_ENOUGH = 1 << 16
"""Bytes of tensors from which on zeros alone are no weights."""


def tensors_problem(path: Path) -> str:
    """Return what is wrong with a safetensors file in a few words; empty when it is whole.

    Tensors follow each other without a gap and are as long as their shapes say. Weights are never all zeros (64 places
    are read, evenly spaced), and no more than half of their bytes may be holes, which nobody wrote.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_LIMIT):
            return f"is no whole safetensors file: {size} bytes do not hold its header"
        try:
            ends = _spans(parse_json(file.read(length)))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return "is no safetensors file: its header cannot be read"
        if not ends:
            return "holds no tensor"
        due = 8 + length + max(ends)
        if size != due:
            return f"is {'truncated' if size < due else 'too long'}: {size} of {due} bytes"
        return _unwritten(file, 8 + length, size)


def _spans(header: dict[str, dict[str, list[int]]]) -> list[int]:
    """Return where tensors end, ascending; `ValueError` when they overlap, leave a gap or have another length."""
    rows = [entry for name, entry in header.items() if name != "__metadata__"]
    ends, last = [], 0
    for begin, end, row in sorted((*map(int, entry["data_offsets"]), number) for number, entry in enumerate(rows)):
        bits = _BITS.get(str(rows[row]["dtype"]))
        count = math.prod(int(side) for side in rows[row]["shape"])
        if begin != last or end < begin or (bits and (count * bits + 7) // 8 != end - begin):
            raise ValueError("tensors that do not lie as they say")
        last = end
        ends.append(end)
    return ends


def _unwritten(file: BinaryIO, begin: int, end: int) -> str:
    written, at = 0, begin
    while at < end:
        try:
            first = os.lseek(file.fileno(), at, os.SEEK_DATA)
            at = os.lseek(file.fileno(), first, os.SEEK_HOLE)
        except OSError:  # no data behind this place, or a file system that does not tell
            break
        written += min(at, end) - first
    if end > begin and written < (end - begin) / 2:
        return f"is full of holes: {written} of {end - begin} bytes of its tensors were written"
    step = max(1, (end - begin) // _SPOTS)
    if end - begin >= _ENOUGH and not any(_spot(file, at).strip(b"\0") for at in range(begin, end, step)):
        return "holds nothing but zeros"
    return ""


def _spot(file: BinaryIO, at: int) -> bytes:
    file.seek(at)
    return file.read(_SPOT_BYTES)
