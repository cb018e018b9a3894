"""A cluster of a host with an engine and one without, to which the target was brought by `rlbox apply`.

The host without an engine has an sshd, a data disk and no way out: the kit of `rlbox fetch` goes there.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterbox import DISK, Hosts, findings, ids, started
from clusterstand import ADDRESSES, RAYS, REDUCE, TARGET, as_before
from enginebox import CHECKOUT, Result
from following import Follow

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.getuid() != 0, reason="only root can make hosts")]

PLACE = "/mnt/place"
HERE = f"{DISK}/clusters/0/pair/node1/here"
PARTS = r"""
for one in /proc/[0-9]*; do case "$(cat $one/comm 2>/dev/null)" in raylet) echo "${one#/proc/}";; esac; done
ls -A /tmp /dev/shm
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts, of which `node1` has no engine; the target is built here, and brought there."""
    project = tmp_path_factory.mktemp("project")
    (project / "images/pair").mkdir(parents=True)
    (project / "images/pair/target.toml").write_text(TARGET.replace("RAY", RAYS["pair"]))
    with started(2, CLUSTER_HOSTS_DISK="4G", CLUSTER_HOSTS_ENGINES="here none"):
        hosts = Hosts(project=project)
        for words in (("lock", "pair"), ("build", "pair"), ("fetch", "pair", "--place", "here", "--export", "./kit")):
            done = hosts(*words)
            assert done.code == 0, done.err
        bring(hosts)
        yield hosts


def bring(hosts: Hosts) -> None:
    """Bring the target to `node1` as one does with a machine that has nothing but a shell."""
    packed = subprocess.run(["tar", "-C", str(hosts.project), "-c", "."], check=True, capture_output=True).stdout
    ssh = hosts.env()["PATH"].split(":")[0] + "/ssh"
    subprocess.run([ssh, "node1", "mkdir /mnt/project && tar -C /mnt/project -x"], check=True, input=packed)
    found = f"PYTHONPATH={CHECKOUT}:{sysconfig.get_path('purelib')} RLBOX_STORE=/mnt/store"  # its own home hides others
    rlbox = f"cd /mnt/project && {found} python{sysconfig.get_python_version()} -m rlbox"
    hosts.on("node1", f"{rlbox} fetch pair --place here --import ./kit 2>&1")
    # below a prefix some of the checks fail, and it says so
    hosts.on("node1", f"{rlbox} apply pair --offline --yes --prefix {PLACE} --data {DISK} 2>&1 || true")
    hosts.on("node1", f"""grep '"state": "laid"' {PLACE}/opt/rlbox/share/applied.json""")
    hosts.on("node1", "rm -r /mnt/project /mnt/store")


@pytest.fixture
def hosts(two: Hosts, follow: Follow) -> Iterator[Hosts]:
    """The hosts; whatever a test did, and however it ended: after `down` they are as they were."""
    before = two.on("node1", PARTS)
    with as_before(two, follow, ("pair",)):
        yield two
    assert two.on("node1", PARTS) == before


def healthy(result: Result) -> dict[str, dict]:
    assert result.code == 0, result.err
    assert result.data["healthy"], result.out
    return {node["name"]: node for node in result.data["nodes"]}


def reduced(hosts: Hosts, *more: str) -> Result:
    """Run a job of both nodes, over the wire, as a user does."""
    return hosts("cluster", "submit", "pair", *more, "--", "python", "-c", REDUCE)


def raylet(hosts: Hosts) -> str:
    return hosts.on("node1", PARTS).split()[0]


def test_a_worker_without_an_engine(hosts: Hosts, follow: Follow) -> None:
    dry = hosts("cluster", "up", "pair", "--dry-run")
    assert dry.code == 0, dry.err
    up = hosts("cluster", "up", "pair", "--json")
    nodes = healthy(up)
    assert [nodes[name]["here"] for name in ("node0", "node1")] == [False, True]
    assert up.err.count("without an engine on node1: Ray runs there as processes of yours") == 1
    assert up.data["cluster"]["closed"] == "token"
    done = reduced(hosts)
    assert done.code == 0, done.err
    assert " ".join(["nodes", *ADDRESSES.values()]) in done.out
    again = hosts("cluster", "up", "pair", "--json")
    healthy(again)
    assert again.data["started"] == []
    assert "worker, no engine" in hosts("cluster", "status", "pair").out
    logs = hosts("cluster", "logs", "pair", "--json").data["lines"]
    assert {"raylet.out"} <= {line["file"] for line in logs if line["node"] == "node1"}

    base, workers = (up.data["cluster"]["ports"][key] for key in ("base", "workers"))
    rows = hosts.on("node1", "ss -Hltn | awk '{print $4}'").split()
    open_ports = {int(row.rpartition(":")[2]) for row in rows if not row.startswith("127.")} - {22}
    assert open_ports
    assert open_ports <= {*range(base, base + 20), *range(workers, workers + 1000)}
    token = hosts.on("node1", f"cat {DISK}/clusters/0/pair/node1/auth_token")
    assert token not in hosts.on("node1", "ps axwwe") + hosts.on("node1", f"cat {HERE}/*/*")
    files = hosts.on("node1", f"grep -rlF {token} {DISK} /tmp /root /var/log /run /mnt || true").split()
    assert files == [f"{DISK}/clusters/0/pair/node1/auth_token"]


def test_a_killed_part_is_named_and_brought_back(hosts: Hosts, follow: Follow) -> None:
    """kill -9 of the raylet, of the leader of its session, and then of Ray's own start."""
    healthy(hosts("cluster", "up", "pair", "--json"))
    hosts.on("node1", f"kill -9 {raylet(hosts)}")
    until_ids(hosts, {"node1": ["part-killed"]})
    doctor = hosts("cluster", "doctor", "pair", "--json")
    (one,) = findings(doctor)
    assert one["title"] == "a part of its Ray was killed, by hand or for memory"
    assert "raylet" in one["seen"]
    assert one["remedy"] == "rlbox cluster up pair brings back what died"
    up = hosts("cluster", "up", "pair", "--json")
    healthy(up)
    assert up.data["started"] == ["node1"]
    done = reduced(hosts)
    assert done.code == 0, done.err
    record = json.loads(hosts.on("node1", f"cat {HERE}/*/record.json"))
    child = hosts.on("node1", f"pgrep -P {record['pid']}").strip()
    hosts.on("node1", f"kill -9 {record['pid']}")
    assert healthy(hosts("cluster", "status", "pair", "--json"))
    hosts.on("node1", f"kill -9 {child}")
    until_ids(hosts, {"node1": ["container-killed"]})


def until_ids(hosts: Hosts, wanted: dict[str, list[str]]) -> None:
    end = time.monotonic() + 120
    while ids(hosts("cluster", "doctor", "pair", "--json")) != wanted:
        assert time.monotonic() < end


def test_a_killed_up_is_repeated(hosts: Hosts) -> None:
    before = hosts.look()
    words = hosts.argv("cluster", "up", "pair")
    first = subprocess.Popen(words, cwd=hosts.project, env=hosts.env(), stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while not hosts.on("node1", f"ls {HERE} 2>/dev/null || true"):
        assert first.poll() is None
        assert time.monotonic() < end
    first.send_signal(signal.SIGKILL)
    first.wait()
    healthy(hosts("cluster", "up", "pair", "--json"))
    assert hosts("cluster", "down", "pair").code == 0
    hosts.until(before)


def test_a_head_without_an_engine(hosts: Hosts, follow: Follow) -> None:
    """Its worker is a container."""
    nodes = ("--nodes", "node1,node0")
    healthy(hosts("cluster", "up", "pair", *nodes, "--json"))
    done = reduced(hosts, *nodes)
    assert done.code == 0, done.err
    assert " ".join(["nodes", *ADDRESSES.values()]) in done.out
    failed = hosts(
        "cluster",
        "submit",
        "pair",
        *nodes,
        "--secret",
        "DEEP",
        "--",
        "sh",
        "-c",
        "echo $DEEP; exit 7",
        DEEP="q7Zp2vXk91mTb4",
    )
    assert failed.code == 7, failed.err
    assert "q7Zp2vXk91mTb4" not in failed.out + failed.err


def test_another_lock_is_refused(two: Hosts) -> None:
    """A place that is brought to another lock is refused, with what to type."""
    lock = Path(two.project, "images/pair/lock.json")
    text = lock.read_text()
    try:
        lock.write_text(re.sub(r'"size": (\d+)', r'"size": \g<1>1', text, count=1))
        dry = two("cluster", "doctor", "pair", "--json")
    finally:
        lock.write_text(text)
    assert "place-differs" in ids(dry).get("node1", []), dry.out + dry.err
