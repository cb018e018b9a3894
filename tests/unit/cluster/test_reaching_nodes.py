"""What ssh says of nodes that it does not reach, where nodes are for each other, and what is told of them meanwhile."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clusterfacts import NO_ENGINE, PLACE, context, existing, facts, survey

from rlbox.cluster import status as monitoring
from rlbox.cluster.checks import check_nodes
from rlbox.cluster.node.facts import InterfaceAddress, RayInstance
from rlbox.cluster.nodes import Node, NodePool, find_peer_addresses, runs_ray_without_container
from rlbox.cluster.status import NodeFailureMonitor
from rlbox.errors import MachineError
from rlbox.ssh.connection import explain_ssh_error
from rlbox.target.target import ClusterNode

CHANGED = """@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
Host key for 10.0.0.2 has changed and you have requested strict checking.
Host key verification failed."""


@pytest.mark.parametrize(
    ("output", "id_", "step"),
    [
        (CHANGED, "host-key-changed", "`ssh b` shows how to remove the old key"),
        ("No ED25519 host key is known for b\nHost key verification failed.", "host-key-unknown", "run `ssh b` once"),
        ("ssh: Could not resolve hostname b: Name or service not known", "host-unknown", "~/.ssh/config"),
        ("ann@b: Permission denied (publickey,password).", "login-refused", "ssh-copy-id b"),
        ("bash: line 1: python3: command not found", "no-python", "apt-get install python3"),
        ("channel 2: open failed: administratively prohibited", "no-forwarding", "AllowStreamLocalForwarding yes"),
        ("ssh: connect to host 10.0.0.2 port 22: Connection refused", "unreachable", "make `ssh b true` work"),
        ("", "unreachable", "make `ssh b true` work"),
        ("channel 0: open failed: connect failed: No route to host\nConnection closed", "unreachable", "`ssh b true`"),
    ],
)
def test_ssh_error_names_cause_and_step(output: str, id_: str, step: str) -> None:
    found = explain_ssh_error("b", output)
    assert (found.id, found.where, found.level) == (id_, "b", "error")
    assert step in found.remedy


@pytest.mark.allow("processes")
def test_a_call_without_an_answer_does_not_wait_for_who_else_holds_its_pipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master of an ssh connection has them until it notices that the link is cut, a minute later."""
    script = f"(sleep 20; touch {tmp_path}/ended) & echo $! >{tmp_path}/holder; sleep 60"
    monkeypatch.setattr(Node, "_argv", lambda self, command: ("sh", "-c", script))
    with pytest.raises(MachineError, match="node b has not answered for 1 s"):
        Node(ClusterNode(name="b", data="/data")).call("read_user_and_memory_facts", 1.0)
    assert not (tmp_path / "ended").exists()
    os.kill(int((tmp_path / "holder").read_text()), signal.SIGTERM)


def test_a_node_is_where_the_target_says_or_ssh_reaches_it() -> None:
    two = tuple(InterfaceAddress(interface=f"eth{n}", address=f"10.0.{n}.2", mtu=1500) for n in range(2))
    rows = {"a": facts("a"), "b": facts("b", addresses=two)}
    specs = (ClusterNode(name="a", data="/data"), ClusterNode(name="b", data="/data"))
    assert find_peer_addresses(specs, rows)["b"] == two[0]
    named = (specs[0], ClusterNode(name="b", data="/data", address="10.0.1.2"))
    assert find_peer_addresses(named, rows)["b"] == two[1]
    elsewhere = (specs[0], ClusterNode(name="b", data="/data", address="192.0.2.7"))
    assert find_peer_addresses(elsewhere, rows)["b"].address == "192.0.2.7"
    assert find_peer_addresses(specs, {**rows, "b": facts("b", addresses=())}).keys() == {"a"}


def test_a_node_without_engine_needs_an_installation() -> None:
    own = ClusterNode(name="b", data="/data")
    assert not runs_ray_without_container(own, facts("b", engine=NO_ENGINE))
    assert runs_ray_without_container(own, facts("b", engine=NO_ENGINE, installation=PLACE))
    assert not runs_ray_without_container(own, facts("b", installation=PLACE))
    assert runs_ray_without_container(ClusterNode(name="b", data="/data", here=True), facts("b"))
    (one,) = check_nodes(context(), survey(inplace_nodes={"b"}), ("/models/m",))
    assert (one.id, one.remedy) == ("place-missing", "rlbox apply mine --data /data, there")


# ---- nodes that are watched


class Played:
    """A connection to a node: `reached` is how the others are reached from it, one after the other."""

    def __init__(self, name: str) -> None:
        self.name, self.is_lost, self.reached = name, False, [""]
        self.spec, self.row = ClusterNode(name=name, data="/data"), dict[str, Any]()
        self.error: MachineError | None = None

    def call(self, name: str, timeout_s: float = 0.0, **arguments: Any) -> Any:
        if name == "attempt_connections":
            said = self.reached.pop(0) if len(self.reached) > 1 else self.reached[0]
            return [said] * len(arguments["endpoints"])
        if self.error:
            raise self.error
        sound = RayInstance(id=self.name, name="n", image="i", labels={}, status="running")
        return ["/data", True, "", 10**9, 10**9, True], [list(sound._replace(**self.row))]


Watched = tuple[dict[str, Played], NodeFailureMonitor, "queue.Queue[str]"]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """The connections to both nodes, what watches them, and what it says."""
    monkeypatch.setattr(monitoring, "_SETTLE_S", 0.01)
    monkeypatch.setattr(monitoring, "_POLL_S", 0.01)
    nodes = {name: Played(name) for name in "ab"}
    said: queue.Queue[str] = queue.Queue()
    pool: Any = NodePool(nodes)  # type: ignore[arg-type]
    watching: Any = SimpleNamespace(pool=pool, app=SimpleNamespace(print_status=said.put))
    instances = {name: RayInstance(id=name, name="n", image="i", labels={}, status="running") for name in "ab"}
    monitor = NodeFailureMonitor(existing(watching, instances))
    yield nodes, monitor, said
    monitor.close()


def test_what_happens_is_told_once(watched: Watched) -> None:
    nodes, __, said = watched
    nodes["b"].row = {"status": "exited", "exit_code": 137}
    assert said.get(timeout=60).startswith("b: its container was killed: exit code 137")
    nodes["b"].row = {"id": "another"}
    assert said.get(timeout=60).startswith("b: its container was removed")
    nodes["a"].reached = ["it did not answer"]
    nodes["b"].error = MachineError("the connection broke")
    assert "neither this machine nor the other nodes reach it" in said.get(timeout=60)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (["it did not answer"], "neither this machine nor the other nodes reach it"),
        ([""], "this machine does not reach it, a does"),
    ],
)
def test_a_node_whose_connection_broke_is_explained_by_the_others(
    answers: list[str], words: str, watched: Watched
) -> None:
    nodes, monitor, said = watched
    nodes["a"].reached = answers
    nodes["b"].error = MachineError("the connection broke")
    assert words in said.get(timeout=60)
    (one,) = monitor.stop_probe_and_show_findings()
    assert (one.where, monitor.silent_nodes) == ("b", {"b"})
