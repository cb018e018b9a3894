"""A cluster of two real hosts from nothing to nothing: closed, healed, rolled back, gone.

`make nightly ARGS=cluster`. A stranger on a third host tries every port that listens.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence

import pytest
from attackbox import try_all
from clusterbox import DISK, GATE, NODES, Hosts, findings, ids, script, until_gone
from clusterstand import ADDRESSES, RAYS, REDUCE, containers, docker, healthy
from enginebox import Result
from following import Follow
from projectbox import PROJECT

NAMES = ("pair", "mixed")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.getuid() != 0, reason="only root can make hosts")]


def listening(hosts: Hosts, host: str) -> list[int]:
    """Return the ports on which others than the host itself could reach something, but sshd."""
    rows = hosts.on(host, "ss -Hltn | awk '{print $4}'").split()
    found = {int(row.rpartition(":")[2]) for row in rows if "127.0.0.1]" not in row and not row.startswith("127.")}
    return sorted(found - {22})


def planned(result: Result) -> set[int]:
    base, workers = (result.data["cluster"]["ports"][key] for key in ("base", "workers"))
    return {*range(base, base + 20), *range(workers, workers + 1000)}


def strangers_are_refused(hosts: Hosts, image: str, ups: Sequence[Result], token: str = "") -> None:
    """From this machine, which is no node: every port that listens on either; none does that no plan has named.

    A job is posted to each that is not refused, and the token of a cluster opens no other's.
    """
    python = [
        "docker",
        "run",
        "--rm",
        "--network=host",
        "--entrypoint=/opt/venv/bin/python",
        f"rlbox/{image}:{PROJECT}",
    ]
    for host in NODES:
        ports = listening(hosts, host)
        assert ports
        assert set(ports) <= set().union(*map(planned, ups))
        if token not in ("", "f" * 64):  # which is right for the other's ports
            ports = [port for port in ports if port in planned(ups[0])]
        done, refused = try_all(python, ADDRESSES[host], f"{DISK}/planted", ports, token)
        assert done == [], refused
        hosts.on(host, f"test ! -e {DISK}/planted")


def job(hosts: Hosts, name: str, plan: str) -> str:
    """Run Ray's own driver in the head's container, on both nodes."""
    container = hosts.on("node0", f"docker ps -q --filter label=rlbox.cluster={name}").strip()
    return hosts.on("node0", f"docker exec -i {container} /opt/venv/bin/python - <<'X'\n{plan}\nX")


def test_a_ray_with_tokens(hosts: Hosts, follow: Follow) -> None:
    up = hosts("cluster", "up", "pair", "--json")
    healthy(up)
    step = follow.step(("cluster", "up", "pair"), hosts("cluster", "up", "pair"))
    assert healthy(hosts(*step.commands({})[0], "--json"))
    assert up.data["started"] == [*NODES]
    assert up.data["cluster"]["closed"] == "token"
    assert job(hosts, "pair", REDUCE).split()[-3:] == ["nodes", *ADDRESSES.values()]

    dashboard = up.data["cluster"]["ports"]["base"] + 1
    container = hosts.on("node0", "docker ps -q --filter label=rlbox.cluster=pair").strip()
    submit = f"ray job submit --address http://127.0.0.1:{dashboard} -- /opt/venv/bin/python -c {shlex.quote(REDUCE)}"
    said = hosts.on("node0", f"docker exec {container} /opt/venv/bin/{submit} 2>&1")
    assert "succeeded" in said, said
    assert " ".join(["nodes", *ADDRESSES.values()]) in said

    began = containers(hosts)
    again = hosts("cluster", "up", "pair", "--json")
    healthy(again)
    assert (again.data["started"], containers(hosts)) == ([], began)

    token = hosts.on("node0", f"cat {DISK}/clusters/0/pair/node0/auth_token")
    assert len(token) == 64
    for host in NODES:
        assert hosts.on(host, f"stat -c %a {DISK}/clusters/0/pair/{host}/auth_token").strip() == "600"
        seen = hosts.on(
            host, f"docker inspect $(docker ps -aq); docker logs $(docker ps -aq) 2>&1; ps axwwe; ls -lR {DISK}"
        )
        assert token not in seen
        files = hosts.on(host, f"grep -rlF {token} {DISK} /tmp /root /var/log /run || true").split()
        assert files == [f"{DISK}/clusters/0/pair/{host}/auth_token"]
    assert token not in up.out + up.err
    other = hosts("cluster", "up", "pair", "--name", "other", "--json")
    try:
        healthy(other)
        foreign = hosts.on("node0", f"cat {DISK}/clusters/0/other/node0/auth_token")
        for wrong in ("", "f" * 64, foreign):
            strangers_are_refused(hosts, "pair", (up, other), wrong)
    finally:
        assert hosts("cluster", "down", "pair", "--name", "other").code == 0
    healthy(hosts("cluster", "status", "pair", "--json"))


def test_what_died_is_brought_back(hosts: Hosts, follow: Follow) -> None:
    healthy(hosts("cluster", "up", "pair", "--json"))
    began = containers(hosts)
    hosts.on("node1", "docker kill $(docker ps -q)")
    status = hosts("cluster", "status", "pair", "--json")
    assert status.code == 5
    assert {node["name"]: node["container"] for node in status.data["nodes"]} == {
        "node0": "running",
        "node1": "exited (137)",
    }
    doctor = hosts("cluster", "doctor", "pair", "--json")
    assert ids(doctor) == {"node1": ["container-killed"]}
    follow.step(("cluster", "doctor", "pair"), doctor, findings(doctor)[0]["remedy"])
    step = follow("cluster", "status", "pair")
    up = hosts(*step.commands({})[0], "--json")
    healthy(up)
    assert up.data["started"] == ["node1"]
    now = containers(hosts)
    assert now["node0"] == began["node0"]
    assert now["node1"] != began["node1"]
    assert job(hosts, "pair", REDUCE).split()[-3:] == ["nodes", *ADDRESSES.values()]
    hosts.on("node0", "docker kill $(docker ps -q)")
    up = hosts("cluster", "up", "pair", "--json")
    healthy(up)
    assert up.data["started"] == [*NODES]


def begun(hosts: Hosts) -> subprocess.Popen[str]:
    """Start to bring a cluster up, and return when the first container is there."""
    words = hosts.argv("cluster", "up", "pair")
    first = subprocess.Popen(words, cwd=hosts.project, env=hosts.env(), stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not any(containers(hosts).values()):
        assert first.poll() is None
        assert time.monotonic() < end
    return first


def test_one_of_two_at_once_wins_and_a_killed_one_is_repeated(hosts: Hosts, follow: Follow) -> None:
    before = hosts.look()
    first = begun(hosts)
    first.send_signal(signal.SIGSTOP)  # in the middle of it, for as long as the other takes
    step = follow("cluster", "up", "pair")
    assert step.said.code == 8, step.said.err
    assert "changes clusters on node" in step.said.err
    first.kill()
    first.communicate()
    until_gone(first.pid)
    follow.again(step)
    assert hosts("cluster", "down", "pair").code == 0
    hosts.until(before)


def test_ctrl_c_leaves_nothing(hosts: Hosts) -> None:
    before = hosts.look()
    first = begun(hosts)
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=120)
    assert first.returncode == 130, err
    hosts.until(before)


def test_an_image_that_was_built_anew(hosts: Hosts, follow: Follow) -> None:
    """The name of the image is another image's when a worker is to be brought back."""
    healthy(hosts("cluster", "up", "pair", "--json"))
    hosts.on("node1", "docker kill $(docker ps -q)")
    names = [f"rlbox/{name}:{PROJECT}" for name in ("pair", "mixed")]
    own, other = (docker("image", "inspect", "-f", "{{.Id}}", name).strip() for name in names)
    docker("tag", other, names[0])
    try:
        step = follow("cluster", "up", "pair")
        assert step.said.code == 2
        assert "started with another image" in step.said.err
        follow.types(step)
        follow.again(step, "--dry-run")
    finally:
        docker("tag", own, names[0])


def test_one_node_is_this_machine(hosts: Hosts) -> None:
    """`local`, the head, whose engine and disk are the machine's own; it is as it was after `down`."""
    disk = hosts.project / "disk"
    clusters = ("ps", "-aq", "--filter=label=rlbox.cluster")  # the machine's engine has others, of other work
    before = (docker(*clusters), sorted(disk.rglob("*")), machine_ports())
    healthy(hosts("cluster", "up", "mixed", "--json"))
    container = docker("ps", "-q", "--filter=label=rlbox.cluster=mixed").strip()
    done = docker("exec", container, "/opt/venv/bin/python", "-c", REDUCE).split()
    assert done[-3:] == ["nodes", GATE, ADDRESSES["node1"]]
    down = hosts("cluster", "down", "mixed")
    assert down.code == 0, down.err
    assert (docker(*clusters), sorted(disk.rglob("*")), machine_ports()) == before


def machine_ports() -> set[int]:
    """Return the ports of the plan's that listen on this machine."""
    rows = subprocess.run(["ss", "-Hltn"], check=True, capture_output=True, text=True).stdout.splitlines()
    found = {int(row.split()[3].rpartition(":")[2]) for row in rows}
    return found & {*range(8100, 8500), *range(10002, 30002)}


def test_a_ray_without_tokens_is_refused(hosts: Hosts, follow: Follow) -> None:
    """What the target has is enough to know."""
    folder = hosts.project / "images/open"
    folder.mkdir(exist_ok=True)
    text = (hosts.project / "images/pair/target.toml").read_text().replace(f"=={RAYS['pair']}", "==2.43.0")
    (folder / "target.toml").write_text(text)
    docker("tag", f"rlbox/pair:{PROJECT}", f"rlbox/open:{PROJECT}")
    try:
        dry = hosts("cluster", "up", "open", "--dry-run")
        assert (dry.code, "accepts commands from any client" in dry.err + dry.out) == (2, True), dry.err
    finally:
        docker("rmi", f"rlbox/open:{PROJECT}")


def test_down_names_what_it_cannot_reach(hosts: Hosts, follow: Follow) -> None:
    """A cluster of both, of which one has its cable cut; then it is plugged in again."""
    healthy(hosts("cluster", "up", "pair", "--json"))
    other = follow("cluster", "up", "pair", "--nodes", "node0")
    assert "runs on node0, node1, not on node0" in other.said.err
    follow.changed(other, ["cluster", "up", "pair", *other.text.partition(";")[0].split()], 0)
    script("cut", "node1")
    try:
        step = follow("cluster", "down", "pair")
    finally:
        script("heal", "node1")
    assert step.said.code == 5
    assert "node1: it does not answer" in step.said.err
    assert "it is gone from node0" in step.said.err
    follow.types(step)
