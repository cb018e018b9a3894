"""`rlbox cluster doctor` and a dry `up` against two real hosts: what is planted is named, all at once, and no more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterbox import DISK, LAB, Hosts, hosts_up, ids

WHERE = ("local", "--nodes", "node0,node1", "--data", DISK)
LISTEN = 'import socket,time;s=socket.create_server(("",8110));time.sleep(600)'
CLOSE = """nft -f - <<'X'
table inet planted {
chain input {
type filter hook input priority 0;
tcp dport 8111 drop
}
}
X"""

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can make hosts")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with hosts_up(tmp_path_factory.mktemp("project")) as found:
        yield found


def test_nothing_is_wrong_and_nothing_is_left(hosts: Hosts) -> None:
    before = hosts.look()
    result = hosts("cluster", "doctor", *WHERE, "--json")
    assert (result.code, ids(result)) == (0, {}), result.err
    assert hosts.look() == before


def test_every_planted_fault_is_named_at_once(hosts: Hosts) -> None:
    """A host that is not there, a disk that is full and open to everybody, a firewall, an interface's MTU."""
    try:
        hosts.on("node0", f"chmod 777 {DISK} && fallocate -l 3500M {DISK}/large")
        hosts.on("node1", "ip link set eth0 mtu 1400")
        hosts.on("node1", CLOSE)
        nodes = ("local", "--nodes", "node0,node1,node9.invalid", "--data", DISK)
        result = hosts("cluster", "doctor", *nodes, "--json")
        table = hosts("cluster", "doctor", *nodes)
    finally:
        hosts.on("node0", f"chmod 755 {DISK}; rm {DISK}/large")
        hosts.on("node1", "ip link set eth0 mtu 1500; nft delete table inet planted")
    assert result.code == table.code == 1
    assert ids(result) == {
        "node0": ["disk-full", "disk-open"],
        "node1": ["mtu-differs", "ports-closed"],
        "node9.invalid": ["host-unknown"],
    }
    assert "8111" in table.out
    assert "3 problems" in table.err


def test_a_port_that_is_asked_for_and_taken_names_its_holder(hosts: Hosts) -> None:
    hosts.on("node1", f"nohup python3 -c '{LISTEN}' >/dev/null 2>&1 </dev/null & echo $! >/run/planted")
    try:
        result = hosts("cluster", "up", *WHERE, "--port", "8100", "--dry-run")
        other = hosts("cluster", "up", *WHERE, "--dry-run")
    finally:
        hosts.on("node1", "kill $(cat /run/planted); rm /run/planted")
    assert "8110 by process" in result.err
    assert "create_server" in result.err
    assert result.code == 5
    assert "ports 8120-8139" in other.out, other.err


def test_two_names_of_one_machine(hosts: Hosts, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host other\n  HostName 10.234.9.11\n{(LAB / 'ssh_config').read_text()}")
    result = hosts(
        "cluster", "doctor", "local", "--nodes", "node0,other", "--data", DISK, CLUSTER_HOSTS_SSH=str(config)
    )
    assert result.code == 2
    assert "nodes node0 and other are one machine" in result.err


def test_a_changed_key_and_a_user_without_rights(hosts: Hosts, tmp_path: Path) -> None:
    known = (LAB / "known_hosts").read_text().splitlines()
    swapped = [f"{row.split()[0]} {other.split(' ', 1)[1]}" for row, other in zip(known, known[::-1], strict=True)]
    (tmp_path / "known").write_text("\n".join(swapped[1:] + known[:1]) + "\n")
    config = tmp_path / "config"
    config.write_text((LAB / "ssh_config").read_text().replace(str(LAB / "known_hosts"), str(tmp_path / "known")))
    nodes = ("local", "--nodes", "mira@node0,node1", "--data", DISK)
    result = hosts("cluster", "doctor", *nodes, "--json", CLUSTER_HOSTS_SSH=str(config))
    assert result.code == 1
    assert ids(result) == {"mira@node0": ["disk-denied", "engine-denied"], "node1": ["host-key-changed"]}
