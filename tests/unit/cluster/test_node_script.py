"""The script of a node, run by this machine's python3: its report, Ray as processes, logs, lock and rollback."""

from __future__ import annotations

import ast
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clusterfacts import plan

from rlbox.cluster.node import facts as node_facts
from rlbox.cluster.node.facts import RayInstance
from rlbox.cluster.nodes import (
    Node,
    NodePool,
    attempt_connections_from_nodes,
    hold_node_locks_raise_if_any_held,
    probe_instances,
    probe_nodes,
)
from rlbox.cluster.plan import ClusterMember, ClusterPlan
from rlbox.cluster.runtime import create_labels, python_path, read_log_tail
from rlbox.errors import LockHeld, MachineError
from rlbox.provision.shell_environment import INHERITED_NAME, SYSTEM_PATH
from rlbox.target.target import ClusterNode

pytestmark = pytest.mark.allow("processes", "sockets")

DIRECTORY = f"clusters/{os.getuid()}/pair/local"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """This machine, with a target that is installed below its data disk."""
    (tmp_path / "own/libexec").mkdir(parents=True)
    (tmp_path / "own/share").mkdir()
    (tmp_path / "own/share/applied.json").write_text("{}")
    (tmp_path / "own/libexec/entrypoint.sh").write_text('exec "$@"\n')
    monkeypatch.setenv("HF_TOKEN", "of-the-shell")
    made = Node(ClusterNode(name="local", data=str(tmp_path)))
    made.connect_forwarding_engine_socket()
    yield made
    clear(made)


def clear(node: Node) -> None:
    node.call("kill_clusters_list_removed", disk=node.spec.data, paths=[DIRECTORY])


def member(node: Node) -> tuple[ClusterPlan, ClusterMember]:
    one = replace(plan().head, name="local", place=f"{node.spec.data}/own", data=node.spec.data, uid=os.getuid())
    return replace(plan(), members=(one,)), one


def start(node: Node, text: str) -> str:
    """Start a played Ray; return the directory of its record."""
    cluster, one = member(node)
    labels = create_labels(cluster, one, "boot")
    argv = ["sh", f"{one.place}/libexec/entrypoint.sh", "sh", "-c", text]
    description = {"name": "rlbox-pair", "image": "l", "labels": labels}
    arguments = {"cluster_directory": DIRECTORY, "description": description}
    return str(node.call("start_ray_get_dir", disk=node.spec.data, program=program(argv), **arguments))


def program(argv: list[str]) -> dict[str, Any]:
    variables = {"PATH": SYSTEM_PATH, "ADDED": "1"}
    return {"argv": argv, "inherited_name": INHERITED_NAME.pattern, "variables": variables}


def instances(node: Node) -> list[RayInstance]:
    return list(probe_instances(node, leave_out_containers=True)[1] or ())


def stop(node: Node, directory: str, grace_s: float) -> None:
    node.call("stop_and_remove_processes", directory=directory, grace_s=grace_s)


def until(is_ready: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not is_ready():
        assert time.monotonic() < end
        time.sleep(0.05)


def session_processes(name: str) -> list[int]:
    record = json.loads(Path(name, "record.json").read_text())
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    rows = {pid: node_facts.read_live_process_stat(pid) for pid in pids}
    return [pid for pid, row in rows.items() if row and row.session_id == record["pid"]]


def test_report_is_complete(node: Node, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = probe_nodes(NodePool({"local": node}), "mine", [str(tmp_path), "/none"])
        found = probe.facts["local"]
        assert server.getsockname()[1] in found.listening
    assert (found.machine.uid, found.disk.there, found.existing_paths) == (os.getuid(), True, [str(tmp_path)])
    assert not any(one.address.startswith("127.") for one in found.addresses)


def test_listeners_are_reached_and_hold_their_ports(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    other = [("other", "127.0.0.1", port)]
    pool = NodePool({"local": node})
    assert [one.error for one in attempt_connections_from_nodes(pool, ["local"], other)] == ["Connection refused"]
    with node.hold("listen_and_find_holders", ports=[port]) as taken:
        assert taken == {}
        assert [one.error for one in attempt_connections_from_nodes(pool, ["local"], other)] == [""]
        with node.hold("listen_and_find_holders", ports=[port]) as second:
            assert "process" in second[str(port)]


def test_processes_end_whole_and_leave_nothing(node: Node, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    name = start(node, "sh -c 'trap \"\" TERM; sleep 600; :' & exec sleep 600")
    (one,) = instances(node)
    assert (one.id, one.status, one.is_inplace, one.labels["rlbox.cluster"]) == (name, "running", True, "pair")
    until(lambda: len(session_processes(name)) == 4)
    pids = session_processes(name)
    stop(node, name, 1)
    assert not any(map(node_facts.read_live_process_stat, pids))
    clear(node)
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in before] == []


def test_processes_whose_leader_was_killed_still_count(node: Node) -> None:
    name = start(node, "sleep 600; :")
    until(lambda: len(session_processes(name)) == 3)
    os.kill(min(session_processes(name)), signal.SIGKILL)
    assert instances(node)[0].status == "running"
    for pid in session_processes(name):
        os.kill(pid, signal.SIGKILL)
    until(lambda: instances(node)[0].status == "exited")
    assert instances(node)[0].exit_code == 137


def test_processes_that_ended_tell_how_and_count_until_replaced(node: Node) -> None:
    name = start(node, "echo 'raylet [exit code=-9]'; exit 1")
    until(lambda: instances(node)[0].status == "exited")
    assert [(one.exit_code, one.first_ended_part_with_code) for one in instances(node)] == [(1, "raylet -9")]
    assert "raylet" in read_log_tail(node, instances(node)[0], 5)
    stop(node, name, 0)
    assert instances(node) == []


def test_programs_have_the_environment_of_the_installation(node: Node) -> None:
    """Nothing of the shell but what is the machine's and the user's; what the cluster says of Ray."""
    text = node.call("run_program_ignoring_exit", program=program(["env"]))
    rows = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert rows["ADDED"] == "1"
    assert "HF_TOKEN" not in rows
    assert rows["PATH"].startswith("/usr/local/sbin:")


def test_where_a_target_was_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert node_facts.find_installation("mine") is None
    share = tmp_path / "elsewhere/opt/rlbox/share"
    share.mkdir(parents=True)
    (tmp_path / "rlbox/places").mkdir(parents=True)
    (tmp_path / "rlbox/places/mine.json").write_text(json.dumps({"prefix": str(tmp_path / "elsewhere")}))
    row = {"target": "mine", "state": "laid", "lock": "l", "data": "/data"}
    (share / "applied.json").write_text(json.dumps(row))
    own = f"{tmp_path}/elsewhere/opt/rlbox"
    found = node_facts.Installation(own, "l", "/data")
    assert node_facts.find_installation("mine") == found
    (share / "applied.json").write_text(json.dumps({**row, "state": "laying"}))
    assert node_facts.find_installation("mine") == found._replace(is_complete=False)
    assert python_path(replace(plan().head, place=own)) == f"{tmp_path}/elsewhere/opt/venv/bin/python"


def test_which_part_of_ray_ended() -> None:
    """As Ray 2.60 and 2.43 print it; what it quotes of logs stands before or behind."""
    told = "Some Ray subprocesses exited unexpectedly:\n  raylet [exit code=-9]\n  log_monitor [exit code=1]"
    assert node_facts.find_first_ended_part_with_code("x [exit code=3]\n" + told) == "raylet -9"
    assert (
        node_facts.find_first_ended_part_with_code("exited unexpectedly:\n  \x1b[1mraylet\x1b[22m [exit code=-9]\n")
        == "raylet -9"
    )
    assert node_facts.find_first_ended_part_with_code("nothing of it") == ""


def test_logs_are_read_as_they_grow_and_no_link_is_followed(node: Node, tmp_path: Path) -> None:
    logs = tmp_path / DIRECTORY / "ray/session_2026-01-01_1/logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("one\ntwo\nthr")
    (tmp_path / "secret").write_text("x\n")
    (logs / "raylet.err").symlink_to(tmp_path / "secret")
    offsets: dict[str, int] = {}

    def read(*, with_unfinished_lines: bool) -> dict[str, str]:
        logs = node.call(
            "tail_ray_logs",
            ray_directory=str(tmp_path / DIRECTORY / "ray"),
            patterns=["raylet.*"],
            offsets=offsets,
            with_unfinished_lines=with_unfinished_lines,
        )
        offsets.update({name: offset for name, (__, ___, offset) in logs.items()})
        return {name: text for name, (text, __, ___) in logs.items()}

    assert read(with_unfinished_lines=False) == {"raylet.out": "one\ntwo\n"}
    assert read(with_unfinished_lines=False) == {}
    with (logs / "raylet.out").open("a") as file:
        file.write("ee\nfour")
    assert read(with_unfinished_lines=False) == {"raylet.out": "three\n"}
    assert read(with_unfinished_lines=True) == {"raylet.out": "four"}


def test_no_path_leads_out_of_the_data_disk(node: Node, tmp_path: Path) -> None:
    (tmp_path / "clusters").symlink_to("/etc")
    with pytest.raises(MachineError, match="leads out of"):
        node.call("write_private_file", disk=str(tmp_path), path="clusters/0/x", text="")
    (tmp_path / "clusters").unlink()


def test_a_lock_is_held_by_one(node: Node) -> None:
    pool = NodePool({"local": node})
    with (
        hold_node_locks_raise_if_any_held(pool),
        pytest.raises(LockHeld, match="another call changes clusters on node local"),
        hold_node_locks_raise_if_any_held(pool),
    ):
        pass
    with hold_node_locks_raise_if_any_held(pool):
        pass


def test_the_script_is_for_an_old_python() -> None:
    for path in sorted(Path(node_facts.__file__).parent.glob("*.py")):
        ast.parse(path.read_text("utf-8"), feature_version=(3, 6))
