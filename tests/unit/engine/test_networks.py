"""Which network a container can have on an engine."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import LIMITS

from rlbox.engine.act.docker import DockerEngine


@pytest.mark.parametrize(
    ("names", "asked", "given"),
    [
        (("bridge",), "own", "own"),
        ((), "own", "host"),
        (("my-bridge",), "own", "host"),  # the engine's names are searched by a part of them
        ((), "bridge", "bridge"),
        ((), "none", "none"),
    ],
)
def test_an_engine_without_bridges_gives_the_hosts_network(names: tuple[str, ...], asked: str, given: str) -> None:
    found = [SimpleNamespace(name=name) for name in names]
    client: Any = SimpleNamespace(networks=SimpleNamespace(list=lambda names, filters: found))
    limits = replace(LIMITS, network=asked)
    assert DockerEngine(client, "unix:///x").reachable(limits) == replace(limits, network=given)
