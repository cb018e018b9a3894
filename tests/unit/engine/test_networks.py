"""Which network a container can have on an engine."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from docker.errors import APIError
from fakes import LIMITS

from rlbox.engine.container import ContainerPlan
from rlbox.engine.docker import DockerEngine, PortTakenError
from rlbox.errors import EngineError

PLAN = ContainerPlan(image="i", name="n", argv=(), labels={}, network="own", published_ports=(8101, 8102))


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
    assert DockerEngine(client, "unix:///x").use_host_network_if_no_bridge(limits) == replace(limits, network=given)


def refusing(network: str = "", container: str = "") -> DockerEngine:
    """An engine that refuses to make a network, or to start a container."""
    client = MagicMock()
    client.networks.list.return_value = []
    if network:
        client.api.create_network.side_effect = APIError("500 Server Error", explanation=network)
    if container:
        client.containers.create.return_value.start.side_effect = APIError("500 Server Error", explanation=container)
    return DockerEngine(client, "unix:///x")


@pytest.mark.parametrize(
    "words",
    [
        "all predefined address pools have been fully subnetted",
        "Failed to Setup IP tables: Unable to enable SKIP DNAT rule: No chain/target/match",
    ],
)
def test_a_network_that_cannot_be_made(words: str) -> None:
    engine = refusing(network=words)
    for begin in (
        lambda: engine.create_and_start_container_and_network(PLAN),
        lambda: engine.create_temporary_network_if_own(PLAN).__enter__(),
    ):
        with pytest.raises(EngineError, match=words) as refused:
            begin()
        assert 'run.network = "host"' in refused.value.next_step


@pytest.mark.parametrize(
    ("words", "ports"),
    [
        ("driver failed: Bind for 127.0.0.1:8102 failed: port is already allocated", {8102}),
        ("Error starting userland proxy: listen tcp4 127.0.0.1:8101: bind: address already in use", {8101}),
        ("failed to bind host port for 127.0.0.1:8101:172.18.0.2:8101/tcp: address already in use", {8101}),
        ("something is already in use", {8101, 8102}),
    ],
)
def test_a_port_that_is_taken_is_named(words: str, ports: set[int]) -> None:
    with pytest.raises(PortTakenError) as refused:
        refusing(container=words).create_and_start_container_and_network(PLAN)
    assert refused.value.ports == ports
