"""`rlbox cluster doctor` and a dry `up` against two real hosts: what is planted is named, all at once, and no more.

Then what is advised is done there, and nothing is wrong any more.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterbox import DISK, LAB, Hosts, findings, hosts_up, ids
from clusterstand import ADDRESSES
from following import Follow

NODES = ("--nodes", "node0,node1", "--data", DISK)
DOCTOR = ("cluster", "doctor", "local", *NODES)
IMAGE = "rlbox/local:clusters"
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
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts; a dry run looks whether this machine has the image, and no more: here it is an empty one."""
    subprocess.run(["docker", "import", "-", IMAGE], input=bytes(10240), check=True, capture_output=True)
    try:
        with hosts_up(tmp_path_factory.mktemp("project"), RLBOX_PROJECT_NAME=IMAGE.partition(":")[2]) as found:
            yield found
    finally:
        subprocess.run(["docker", "image", "rm", IMAGE], check=True, capture_output=True)


@pytest.fixture
def hosts(two: Hosts, follow: Follow) -> Iterator[Hosts]:
    """The hosts; what a test does there, it undoes."""
    follow.rlbox = two
    before = two.look()
    yield two
    assert two.look() == before


def there(advice: str) -> str:
    """Return the command of an advice like `chmod 700 /data there`."""
    assert advice.endswith(" there")
    return advice.removesuffix(" there")


def test_nothing_is_wrong_and_nothing_is_left(hosts: Hosts) -> None:
    result = hosts(*DOCTOR, "--json")
    assert (result.code, ids(result)) == (0, {}), result.err


def test_every_planted_fault_is_named_at_once(hosts: Hosts, follow: Follow) -> None:
    """A host that is not there, a disk that is full, a firewall, an interface's MTU."""
    hosts.on("node0", f"fallocate -l 3500M {DISK}/large")
    hosts.on("node1", "ip link set eth0 mtu 1400")
    hosts.on("node1", CLOSE)
    typed = ("cluster", "doctor", "local", "--nodes", "node0,node1,node9.invalid", "--data", DISK)
    result = hosts(*typed, "--json")
    table = hosts(*typed)
    assert result.code == table.code == 1
    assert ids(result) == {
        "node0": ["disk-full"],
        "node1": ["mtu-differs", "ports-closed"],
        "node9.invalid": ["host-unknown"],
    }
    assert "8111" in table.out
    assert "3 problems" in table.err
    step = {one["id"]: follow.step(typed, table, one["remedy"]) for one in findings(result)}
    hosts.on("node1", there(step["mtu-differs"].text))
    hosts.on("node0", f"rm {DISK}/large")
    hosts.on("node1", "nft delete table inet planted")
    follow.instead(step["host-unknown"], ",node9.invalid", "")


def test_a_port_that_is_asked_for_and_taken_names_its_holder(hosts: Hosts, follow: Follow) -> None:
    hosts.on("node1", f"nohup python3 -c '{LISTEN}' >/dev/null 2>&1 </dev/null & echo $! >/run/planted")
    hosts.on("node1", "until ss -Hltn | grep -q :8110; do sleep 0.1; done")
    try:
        step = follow("cluster", "up", "local", *NODES, "--port", "8100", "--dry-run")
        other = hosts("cluster", "up", "local", *NODES, "--dry-run")
        free = hosts("cluster", "up", "local", *NODES, "--port", "8140", "--dry-run")
    finally:
        hosts.on(
            "node1", "kill $(cat /run/planted); rm /run/planted; while ss -Hltn | grep -q :8110; do sleep 0.1; done"
        )
    assert "8110 by process" in step.said.err
    assert "create_server" in step.said.err
    assert step.said.code == 5
    assert "ports 8120-8139" in other.out, other.err
    assert "ports 8140-8159" in free.out, free.err


def test_two_names_of_one_machine(hosts: Hosts, follow: Follow, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host other\n  HostName {ADDRESSES['node0']}\n{(LAB / 'ssh_config').read_text()}")
    follow.rlbox = lambda *words: hosts(*words, CLUSTER_HOSTS_SSH=str(config))
    step = follow("cluster", "doctor", "local", "--nodes", "node0,other", "--data", DISK)
    assert step.said.code == 2
    assert "nodes node0 and other are one machine" in step.said.err
    follow.instead(step, "node0,other", "node0,node1")


def test_a_changed_key_and_a_user_without_rights(hosts: Hosts, follow: Follow, tmp_path: Path) -> None:
    known = (LAB / "known_hosts").read_text().splitlines()
    swapped = [f"{row.split()[0]} {other.split(' ', 1)[1]}" for row, other in zip(known, known[::-1], strict=True)]
    (tmp_path / "known").write_text("\n".join(swapped[1:] + known[:1]) + "\n")
    config = tmp_path / "config"
    config.write_text((LAB / "ssh_config").read_text().replace(str(LAB / "known_hosts"), str(tmp_path / "known")))
    typed = ("cluster", "doctor", "local", "--nodes", "mira@node0,node1", "--data", DISK)
    result = hosts(*typed, "--json", CLUSTER_HOSTS_SSH=str(config))
    assert result.code == 1
    assert ids(result) == {"mira@node0": ["disk-denied", "engine-denied"], "node1": ["host-key-changed"]}
    (changed,) = (one for one in findings(result) if one["id"] == "host-key-changed")
    assert "`ssh node1` shows how to remove the old key" in changed["remedy"]
    own = [one for one in findings(result) if one["where"].startswith("mira@")]
    step = {one["id"]: follow.step(typed, result, one["remedy"]) for one in own}
    group = (LAB / "node0/group").read_text()
    try:
        hosts.on("node0", there(step["disk-denied"].text))
        (LAB / "node0/group").write_text(group.replace("docker:x:2001:", "docker:x:2001:mira"))
        follow.changed(step["engine-denied"], typed, 0)  # and the key that is known is the right one again
    finally:
        (LAB / "node0/group").write_text(group)
        hosts.on("node0", f"chown 0 {DISK}")


def test_what_a_job_reads_is_to_be_everywhere(hosts: Hosts, follow: Follow) -> None:
    hosts.on("node0", f"mkdir {DISK}/m")
    typed = (*DOCTOR, "--path", f"{DISK}/m")
    try:
        missing = hosts(*typed, "--json")
        assert ids(missing) == {"node1": ["path-missing"]}
        step = follow.step(typed, missing, findings(missing)[0]["remedy"])
        hosts.on("node1", f"mkdir {DISK}/m")
        follow.again(step)
    finally:
        for host in ("node0", "node1"):
            hosts.on(host, f"rm -rf {DISK}/m")


def test_another_disk_is_named(hosts: Hosts, follow: Follow) -> None:
    typed = ("cluster", "doctor", "local", "--nodes", "node0,node1", "--data", "/none")
    result = hosts(*typed, "--json")
    assert "disk-missing" in ids(result)["node0"]
    text = next(one["remedy"] for one in findings(result) if one["id"] == "disk-missing")
    follow.instead(follow.step(typed, result, text), "/none", DISK)


def test_where_there_is_no_cluster_one_is_brought_up(hosts: Hosts, follow: Follow) -> None:
    step = follow("cluster", "status", "local", *NODES)
    assert step.said.code == 5
    follow.changed(step, [*shlex.split(step.text)[1:], "--dry-run"], 0)
