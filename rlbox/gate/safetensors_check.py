"""Whether a safetensors file is whole: its header says where each tensor lies, and something was written there."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.job.names import ProblemOrEmpty
from rlbox.system.safe_files import open_regular_file

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
_TOLD = 8
"""One of so many places must hold something."""
_SPOT_BYTES = 4096
_ENOUGH = 1 << 16
"""Bytes of tensors from which on zeros alone are no weights."""


def find_safetensors_problem(path: Path) -> ProblemOrEmpty:
    """Return what is wrong with a safetensors file in a few words; empty when it is whole.

    Tensors follow each other without a gap and are as long as their shapes say. Weights are never all zeros or
    one byte (64 places are read, evenly spaced).
    """
    with open_regular_file(path, follow_links=True) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_LIMIT):
            return f"is no whole safetensors file: {size} bytes do not hold its header"
        text = file.read(length)
        try:
            spans = _spans(parse_json(text)) if text[:1] == b"{" else None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            spans = None
        if spans is None:
            return "is no safetensors file: its header cannot be read"
        if not spans:
            return "holds no tensor"
        due = 8 + length + spans[-1].end
        if size != due:
            return f"is {'truncated' if size < due else 'too long'}: {size} of {due} bytes"
        if not spans[-1].end:
            return "holds no tensor that has a byte"
        return _find_fill_problem(file, 8 + length, size)


@dataclass(frozen=True, kw_only=True)
class _Span:
    """Where the bytes of a tensor begin and end behind the header."""

    begin: int
    end: int


def _spans(header: dict[str, Any]) -> list[_Span]:
    """Return the tensors in the order of their bytes.

    Raises
    ------
    ValueError
        They overlap, leave a gap, have another length than their shape says, or say what no reader of them takes.
    """
    told = header.get("__metadata__", {})
    if not all(isinstance(text, str) for text in told.values()):
        raise ValueError(_("metadata that are not texts"))
    spans = [_span(entry) for name, entry in header.items() if name != "__metadata__"]
    spans.sort(key=lambda span: (span.begin, span.end))
    last = 0
    for span in spans:
        if span.begin != last:
            raise ValueError(_("tensors that do not lie as they say"))
        last = span.end
    return spans


def _span(entry: dict[str, Any]) -> _Span:
    begin, end = entry["data_offsets"]
    numbers = [begin, end, *entry["shape"]]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(_("an offset or a dimension is not a number"))
    if end < begin or (math.prod(entry["shape"]) * _BITS[entry["dtype"]] + 7) // 8 != end - begin:
        raise ValueError(_("a tensor of another length than its shape says"))
    return _Span(begin=begin, end=end)


def _find_fill_problem(file: BinaryIO, begin: int, end: int) -> ProblemOrEmpty:
    if end - begin < _ENOUGH:
        return ""
    places = range(begin, end, max(1, (end - begin) // _SPOTS))
    spots = [os.pread(file.fileno(), min(_SPOT_BYTES, end - at), at) for at in places]
    filled = sum(bool(spot.strip(b"\0")) for spot in spots)
    if filled * _TOLD < len(spots):
        return "holds nothing but zeros" if not filled else "holds hardly anything but zeros"
    if len(set().union(*map(set, spots))) == 1:
        return f"holds nothing but the byte 0x{spots[0][0]:02x}"
    return ""
