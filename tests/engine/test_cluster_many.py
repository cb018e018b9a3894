"""Sixty-four hosts are asked at once, directly and through a jump host; every fault is named."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from clusterbox import DISK, Hosts, ids, script
from manynodes import GATE, NODES, accepted, dropped, many_up, place, through_the_gate

DOCTOR = ("cluster", "doctor", "many", "--path", f"{DISK}/m", "--json")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.getuid() != 0, reason="only root can make hosts")]


def there(command: str) -> Callable[[str], object]:
    return lambda name: script("exec", name, "sh", "-c", command)


FAULTS: Mapping[str, Callable[[str], object]] = {
    "disk-full": there(f"fallocate -l $(( $(df --output=avail -B1 {DISK} | tail -1) - 1000000 )) {DISK}/large"),
    "mtu-differs": there("ip link set eth0 mtu 1400"),
    "path-missing": there(f"rm -r {DISK}/m"),
    "place-missing": lambda name: place(name, state="begun"),
    "disk-missing": there(f"umount {DISK} && rmdir {DISK}"),
    "unreachable": lambda name: script("kill", name),
    "login-refused": there("rm ~root/.ssh/authorized_keys"),
}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """The hosts, each with what a job reads."""
    with many_up(tmp_path_factory.mktemp("project")) as found:
        for name in NODES:
            script("exec", name, "sh", "-c", f"mkdir {DISK}/m")
        yield found


def test_nobody_is_turned_away_and_every_fault_is_named(hosts: Hosts, tmp_path: Path) -> None:
    """First nothing is wrong; then one host each has a fault of its own."""
    ways = ({}, {"CLUSTER_HOSTS_SSH": through_the_gate(tmp_path)})
    for way in ways:
        began = accepted()
        sound = hosts(*DOCTOR, **way)
        assert ids(sound) == {}, sound.err
        assert json.loads(sound.out)["nodes"] == len(NODES)
        assert dropped() == []
        gone_through = len(NODES) if way else 0
        expected = {**{name: began[name] + 1 for name in NODES}, GATE: began[GATE] + gone_through}
        assert accepted() == expected  # one connection to a node, and one more through the jump host
    names = random.Random(18).sample(NODES[1:], len(FAULTS))
    planted = dict(zip(names, FAULTS, strict=True))
    for name, fault in planted.items():
        FAULTS[fault](name)
    for way in ways:
        found = ids(hosts(*DOCTOR, **way))
        assert found == {name: [fault] for name, fault in planted.items()}
    assert dropped() == []
