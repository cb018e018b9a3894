"""Messages between checker and program: JSON with its length before it, values of plain kinds only.

What arrives is rebuilt from builtins, so that nothing a program returns can answer for itself when it is compared. What
has no plain kind stays where it is and is named by a number. Run by the stack's interpreter, which has no rlbox.
"""

from __future__ import annotations

import datetime
import json
import os
from collections import deque, namedtuple
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any

MAX_MESSAGE = 16 << 20
"""Bytes."""
MAX_ITEMS = 100_000
"""Items that are taken of an iterator."""
_MAX_EXACT = 1 << 53
_COLLECTIONS: dict[Any, Any] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "iterator": iter,
}
_PLAIN: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "int": (int, lambda value: int(value) if abs(value) < _MAX_EXACT else hex(value), lambda text: int(text, 16)),
    "float": (float, float, float),
    "str": (str, str.__str__, str),
    "bytes": (bytes, lambda value: value.hex(), bytes.fromhex),
    "bytearray": (bytearray, lambda value: value.hex(), bytearray.fromhex),
    "complex": (complex, lambda value: [value.real, value.imag], lambda pair: complex(*pair)),
    "Decimal": (Decimal, str, Decimal),
    "Fraction": (Fraction, str, Fraction),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda three: range(*three)),
    "slice": (slice, lambda value: [value.start, value.stop, value.step], lambda three: slice(*three)),
    "datetime": (datetime.datetime, lambda value: value.isoformat(), datetime.datetime.fromisoformat),
    "date": (datetime.date, lambda value: value.isoformat(), datetime.date.fromisoformat),
    "timedelta": (datetime.timedelta, lambda value: [value.days, value.seconds, value.microseconds],
                  lambda three: datetime.timedelta(*three)),
}  # fmt: skip
"""Kind to its type, what is sent for a value, and how a value is made of that."""


class WireError(Exception):
    """The other side is gone, or has sent what is no message."""


def send_message(fd: int, message: dict[str, Any]) -> None:
    content = json.dumps(message).encode()
    content = len(content).to_bytes(4, "big") + content
    while content:
        content = content[os.write(fd, content) :]


def receive_message(fd: int) -> dict[str, Any]:
    """Return the next message; raises OSError, WireError or what `json.loads` raises where none comes."""
    size = int.from_bytes(_read_exactly(fd, 4), "big")
    if size > MAX_MESSAGE:
        raise WireError(f"a message of {size} bytes")
    message = json.loads(_read_exactly(fd, size))
    if not isinstance(message, dict):
        raise WireError("no message")
    return message


def _read_exactly(fd: int, size: int) -> bytes:
    content = b""
    while len(content) < size:
        chunk = os.read(fd, size - len(content))
        if not chunk:
            raise WireError("the other side is gone")
        content += chunk
    return content


def encode_value(value: Any, refer: Callable[[Any], dict[str, Any]]) -> Any:
    """Return a value as JSON types; `refer` names what has no plain kind."""
    if value is None or isinstance(value, bool):
        return value
    for name, (kind, write, _) in _PLAIN.items():
        if isinstance(value, kind):
            content = write(value)
            is_json = name in ("float", "str") or isinstance(content, int)
            return content if is_json else {"k": name, "v": content}
    if isinstance(value, list):
        return [encode_value(item, refer) for item in value]
    if isinstance(value, dict):
        return {"k": "dict", "v": [[encode_value(one, refer) for one in pair] for pair in value.items()]}
    if isinstance(value, (tuple, set, frozenset, deque, Iterator)):
        return _encode_collection(value, refer)
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return encode_value(value.tolist(), refer)
    return refer(value)


def _encode_collection(value: Any, refer: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    items = [encode_value(item, refer) for item in islice(value, MAX_ITEMS if isinstance(value, Iterator) else None)]
    if isinstance(value, tuple) and (fields := getattr(type(value), "_fields", ())):
        return {"k": "namedtuple", "v": [type(value).__name__, list(fields), items]}
    kinds = (name for name in ("tuple", "set", "frozenset", "deque") if isinstance(value, _COLLECTIONS[name]))
    return {"k": next(kinds, "iterator"), "v": items}


def decode_value(value: Any, find: Callable[[dict[str, Any]], Any]) -> Any:
    """Return what `encode` was given; `find` returns what a reference names."""
    if isinstance(value, list):
        return [decode_value(item, find) for item in value]
    if not isinstance(value, dict):
        return value
    kind, inner = value.get("k"), value.get("v")
    try:
        if kind in _COLLECTIONS:
            return _COLLECTIONS[kind](decode_value(inner, find))
        if kind == "dict" and isinstance(inner, list):
            return {decode_value(key, find): decode_value(item, find) for key, item in inner}
        if kind == "namedtuple" and isinstance(inner, list):
            name, fields, items = inner
            return namedtuple(name, fields)(*decode_value(items, find))
        if kind in _PLAIN:
            return _PLAIN[kind][2](inner)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise WireError(f"no value: {error}") from error
    return find(value)
