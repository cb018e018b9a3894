"""Fields of a protobuf message in wire format, without a schema.

Format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


class ProtobufField(NamedTuple):
    """`value` is an unsigned number of a varint, else the bytes of the field."""

    number: int
    value: int | bytes


def iter_protobuf_fields(message: bytes) -> Iterator[ProtobufField]:
    """Raises ValueError: the bytes are not a protobuf message."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, at = _read_varint(message, at)
            yield ProtobufField(number, value)
            continue
        if wire_type == _BYTES:
            size, at = _read_varint(message, at)
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"protobuf wire type {wire_type}")
        if at + size > len(message):
            raise ValueError("protobuf message is truncated")
        yield ProtobufField(number, message[at : at + size])
        at += size


def list_submessages(message: bytes, number: int) -> list[bytes]:
    """Return the values of a repeated message, text or bytes field; raises as `iter_protobuf_fields`."""
    return [f.value for f in iter_protobuf_fields(message) if f.number == number and isinstance(f.value, bytes)]


def to_signed(varint: int) -> int:
    """Return an int64 of its varint."""
    return varint - (1 << 64) if varint >= 1 << 63 else varint


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_LONGEST_VARINT):
        if at + index >= len(message):
            break
        byte = message[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("protobuf varint is truncated")
