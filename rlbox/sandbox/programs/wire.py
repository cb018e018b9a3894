"""How checker and program speak: messages of JSON with their length before them, values of plain kinds only.

What arrives is rebuilt from builtins, so that nothing a program returns can answer for itself when it is compared. What
has no plain kind stays where it is and is named by a number. Run by the stack's interpreter, which has no rlbox.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any

LONGEST = 16 << 20
"""Bytes of a message."""
_SMALL = 1 << 53
_ITEMS = 100_000  # that are taken of an iterator
_BUILT: dict[Any, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset, "iterator": iter}
_PLAIN: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (int, lambda value: int(value) if abs(value) < _SMALL else {"k": "int", "v": hex(value)}),
    (float, float),
    (str, str.__str__),
    (bytes, lambda value: {"k": "bytes", "v": value.hex()}),
    (bytearray, lambda value: {"k": "bytearray", "v": value.hex()}),
    (complex, lambda value: {"k": "complex", "v": [value.real, value.imag]}),
    (Decimal, lambda value: {"k": "Decimal", "v": str(value)}),
    (Fraction, lambda value: {"k": "Fraction", "v": str(value)}),
    (range, lambda value: {"k": "range", "v": [value.start, value.stop, value.step]}),
)
_READ: dict[Any, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda pair: complex(*pair),
    "Decimal": Decimal,
    "Fraction": Fraction,
    "range": lambda three: range(*three),
}


class WireError(Exception):
    """The other side is gone, or has sent what is no message."""


def send(fd: int, message: dict[str, Any]) -> None:
    """Send one message."""
    content = json.dumps(message).encode()
    content = len(content).to_bytes(4, "big") + content
    while content:
        content = content[os.write(fd, content) :]


def receive(fd: int) -> dict[str, Any]:
    """Return the next message."""
    size = int.from_bytes(_exactly(fd, 4), "big")
    if size > LONGEST:
        raise WireError(f"a message of {size} bytes")
    try:
        found = json.loads(_exactly(fd, size))
    except (ValueError, RecursionError) as error:
        raise WireError(f"no message: {error}") from error
    if not isinstance(found, dict):
        raise WireError("no message")
    return found


def _exactly(fd: int, size: int) -> bytes:
    content = b""
    while len(content) < size:
        try:
            part = os.read(fd, size - len(content))
        except OSError as error:
            raise WireError(str(error)) from error
        if not part:
            raise WireError("the other side is gone")
        content += part
    return content


def encode(value: Any, keep: Callable[[Any], dict[str, Any]]) -> Any:
    """Return a value as JSON types; `keep` is asked for what has no plain kind."""
    if value is None or isinstance(value, bool):
        return value
    for kind, write in _PLAIN:
        if isinstance(value, kind):
            return write(value)
    if isinstance(value, list):
        return [encode(one, keep) for one in value]
    for name in ("tuple", "set", "frozenset"):
        if isinstance(value, _BUILT[name]):
            return {"k": name, "v": [encode(one, keep) for one in value]}
    if isinstance(value, dict):
        return {"k": "dict", "v": [[encode(key, keep), encode(one, keep)] for key, one in value.items()]}
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), keep)
    if isinstance(value, Iterator):
        return {"k": "iterator", "v": [encode(one, keep) for one in islice(value, _ITEMS)]}
    return keep(value)


def decode(value: Any, find: Callable[[dict[str, Any]], Any]) -> Any:
    """Return what `encode` was given; `find` is asked for what stayed on the other side, or is of this one."""
    if isinstance(value, list):
        return [decode(one, find) for one in value]
    if not isinstance(value, dict):
        return value
    kind, inner = value.get("k"), value.get("v")
    try:
        if kind in _BUILT:
            return _BUILT[kind](decode(inner, find))
        if kind == "dict" and isinstance(inner, list):
            return {decode(key, find): decode(one, find) for key, one in inner}
        if kind in _READ:
            return _READ[kind](inner)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise WireError(f"no value: {error}") from error
    return find(value)
