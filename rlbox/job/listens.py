"""Where a service or a stage may listen for others than this machine: ports as a job declares them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import StringConstraints

EPHEMERAL = "ephemeral"

Listen = Annotated[
    str, StringConstraints(pattern=r"^(ephemeral|\{port\.[a-z][a-z0-9_]*\}|[1-9]\d{0,4}(-[1-9]\d{0,4})?)$")
]
"""A port, a range `FIRST-LAST`, or `ephemeral`: those that the kernel gives to who asks for any."""


def allows(declared: Iterable[str], port: int, ephemeral: range) -> bool:
    """Return whether one of `declared`, placeholders filled in, names `port`."""
    for word in declared:
        first, _, last = word.partition("-")
        if port in (ephemeral if word == EPHEMERAL else range(int(first), int(last or first) + 1)):
            return True
    return False
