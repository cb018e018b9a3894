"""Ports as jobs declare them: which others may reach, and what a target's machine must have free."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import StringConstraints

from rlbox.spec.load import parse_toml, read_text, shown_path
from rlbox.spec.project import Project

EPHEMERAL = "ephemeral"

Listen = Annotated[
    str,
    StringConstraints(pattern=r"^(ephemeral|\{port\.[a-z][a-z0-9_]*\}(\+[1-9]\d{0,2})?|[1-9]\d{0,4}(-[1-9]\d{0,4})?)$"),
]
"""A port, one with the COUNT after it `{port.NAME}+COUNT`, a range `FIRST-LAST`, or `ephemeral`: those that the kernel
gives to who asks for any."""


def allows(declared: Iterable[str], port: int, ephemeral: range) -> bool:
    """Return whether one of `declared`, placeholders filled in, names `port`."""
    return any(port in (ephemeral if word == EPHEMERAL else _range(word)) for word in declared)


def _range(word: str) -> range:
    if "+" in word:
        first, _, count = word.partition("+")
        return range(int(first), int(first) + int(count) + 1)
    first, _, last = word.partition("-")
    return range(int(first), int(last or first) + 1)


def load_ports(project: Project, target: str) -> dict[str, int]:
    """Return `JOB.PORT` to number of the jobs of a project that run on a target; `SpecError` where one is no TOML.

    No more is read than that: what else a job says is looked at where it runs.
    """
    found: dict[str, int] = {}
    for name, path in project.jobs().items():
        shown = shown_path(path, project)
        runs_on, ports = _ports(read_text(path, shown), shown)
        found |= {f"{name}.{port}": number for port, number in ports.items() if runs_on == target}
    return found


@functools.lru_cache(maxsize=64)
def _ports(text: str, shown: str) -> tuple[str, Mapping[str, int]]:
    """Return the target and the ports that a job's file names."""
    table = parse_toml(text, shown)
    ports = table.get("ports")
    numbers = ports.items() if isinstance(ports, dict) else ()
    return str(table.get("target")), {name: number for name, number in numbers if isinstance(number, int)}
