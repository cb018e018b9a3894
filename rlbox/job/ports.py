"""Ports as jobs declare them, and which of them others than this machine may reach."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field, StringConstraints

LOWEST, HIGHEST = 1024, 65535

Port = Annotated[int, Field(ge=LOWEST, le=HIGHEST)]

EPHEMERAL = "ephemeral"

PortOpenToOthers = Annotated[
    str,
    StringConstraints(pattern=r"^(ephemeral|\{port\.[a-z][a-z0-9_]*\}(\+[1-9]\d{0,2})?|[1-9]\d{0,4}(-[1-9]\d{0,4})?)$"),
]
"""A port, one with the COUNT after it `{port.NAME}+COUNT`, a range `FIRST-LAST`, or `ephemeral`: those that the kernel
gives to who asks for any."""


def is_port_allowed(declared: Iterable[str], port: int, ephemeral: range) -> bool:
    return any(port in (ephemeral if word == EPHEMERAL else _range(word)) for word in declared)


def _range(word: str) -> range:
    if "+" in word:
        first, _, count = word.partition("+")
        return range(int(first), int(first) + int(count) + 1)
    first, _, last = word.partition("-")
    return range(int(first), int(last or first) + 1)
