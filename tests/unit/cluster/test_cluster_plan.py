"""Nodes, ports, words and environment of a cluster, as values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from clusterfacts import PORTS, facts, plan
from fakes import LIMITS

from rlbox.cluster.plan import PLAN_LABEL, PortPlan, choose_ports, own_plan, plan_of_labels, resolve_node_specs
from rlbox.cluster.runtime import has_tokens, plan_member_container, ray_env, ray_start_program_argv
from rlbox.errors import MachineError, SpecError
from rlbox.target.target import Cluster, ClusterNode, Target
from rlbox.values import Mount


class Own:
    """As much of a target as names nodes."""

    name = "mine"

    def __init__(self, disk: str = "/data", **cluster: object) -> None:
        self.cluster = Cluster.model_validate({"nodes": [], "name": "", "port": 0, **cluster})
        self.disk = type("Disk", (), {"host": disk})()


def wished(own: Own, told: str = "", data: str = "") -> tuple[ClusterNode, ...]:
    target: Target = own  # type: ignore[assignment]
    return resolve_node_specs(target, told, data)


def test_nodes_of_the_target_and_of_the_line() -> None:
    own = Own(nodes=["a", {"name": "b", "data": "/other", "address": "10.0.0.2"}])
    assert wished(own) == (
        ClusterNode(name="a", data="/data"),
        ClusterNode(name="b", data="/other", address="10.0.0.2"),
    )
    assert wished(own, "ann@c, local") == (
        ClusterNode(name="ann@c", data="/data"),
        ClusterNode(name="local", data="/data"),
    )
    assert wished(own, "c", "/mnt")[0].data == "/mnt"
    own = Own(nodes=["a", {"name": "b", "data": "/other", "here": True}])
    there = ClusterNode(name="b", data="/other", here=True)  # named on the line, it is what the target says of it
    assert wished(own, "b,a") == (there, ClusterNode(name="a", data="/data"))


@pytest.mark.parametrize(
    ("own", "told", "data", "what", "step"),
    [
        (Own(), "", "", "target mine names no nodes", "pass --nodes HEAD,WORKER, or set cluster.nodes in the target"),
        (Own(), "a,b,a", "", "node a is named twice", "--nodes"),
        (Own(), "a,-oProxyCommand=x", "", "'-oProxyCommand=x' is not a valid node name", "--nodes"),
        (
            Own(disk="~/x"),
            "a",
            "",
            "the data disk of node a is '~/x', which is not an absolute path",
            "--data /PATH/ON/THE/NODES",
        ),
    ],
)
def test_nodes_that_are_none(own: Own, told: str, data: str, what: str, step: str) -> None:
    with pytest.raises(SpecError) as caught:
        wished(own, told, data)
    assert caught.value.what == what
    assert step in str(caught.value.next_step)


def test_ports_are_none_that_somebody_has() -> None:
    assert choose_ports([], []) == PORTS
    assert choose_ports([8115], []) == PortPlan(base=8120, workers=10002)
    assert choose_ports([], [PORTS]) == PortPlan(base=8120, workers=11002)
    assert choose_ports([], [], unchecked_base=9000).base == 9000
    with pytest.raises(MachineError, match="no 20 ports in a row") as caught:
        choose_ports(range(8100, 8500, 20), [])
    assert caught.value.next_step == "cluster.port of the target, or --port: the first of 20 that are free"


def test_where_every_range_has_a_listener_workers_get_the_emptiest() -> None:
    """A worker that meets a taken port takes the next."""
    busy = [at + 5 for at in range(10002, 30002, 1000)]
    assert choose_ports([*busy, 10009], []).workers == 11002


def test_no_port_of_the_plan_is_another_parts() -> None:
    ports = PORTS.listened(head=True)
    assert len(set(ports)) == len(ports)
    assert set(ports) < PORTS.all()
    assert PORTS.of("dashboard") not in PORTS.ports_to_try_from_others(head=True)
    assert set(PORTS.ports_to_try_from_others(head=False)) < set(PORTS.ports_to_try_from_others(head=True))


def test_ray_is_started_with_these_words() -> None:
    made = plan()
    common = ("--min-worker-port=10002", "--max-worker-port=11001", "--num-gpus=2", "--disable-usage-stats")
    head = ("ray-start", "head", "--dashboard-host=127.0.0.1", "--node-ip-address=10.0.0.1", "--node-name=a", *common)
    worker = ("ray-start", "worker", "--address=10.0.0.1:8100", "--node-ip-address=10.0.0.2", "--node-name=b", *common)
    assert ray_start_program_argv(made, made.members[0]) == head
    assert ray_start_program_argv(made, made.members[1]) == worker


def test_a_key_is_named_by_its_file_and_never_said() -> None:
    made = plan()
    token = ray_env(made, made.head, "/mnt")
    assert token["RAY_AUTH_MODE"] == "token"
    assert token["RAY_AUTH_TOKEN_PATH"] == "/mnt/clusters/1000/pair/a/auth_token"
    assert token["NCCL_SOCKET_IFNAME"] == "=ib0"


def test_tokens_came_with_a_version() -> None:
    assert [has_tokens(one) for one in ("2.43.0", "2.51.2", "2.52.0", "2.60.0", "", "nightly")] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]


def test_a_container_tells_which_cluster_it_is_of() -> None:
    made = plan()
    limits = replace(LIMITS, disk_mount="/mnt")
    container = plan_member_container(made, made.members[1], limits, image="sha256:1", machine=facts("b").machine)
    assert container.labels["rlbox.cluster.machine"] == "boot-b"
    assert container.labels["rlbox.cluster"] == "pair"
    assert container.labels["rlbox.cluster.role"] == "worker"
    assert plan_of_labels(container.labels) == made
    assert container.name == "rlbox-pair-0a1b2c3d"
    directory = "/data/clusters/1000/pair/b/ray"  # sessions lie where `down` finds them
    assert Mount(source=directory, target="/tmp/ray") in container.mounts
    assert own_plan(container.labels, "pair", 1000) == made
    assert own_plan(container.labels, "pair", 1001) is None  # of another user, with the same name
    assert own_plan(container.labels, "other", 1000) is None
    assert own_plan({}, "pair", 1000) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "name": "x"}'])
def test_a_plan_that_is_none(text: str) -> None:
    assert plan_of_labels({PLAN_LABEL: text}) is None
    assert plan_of_labels({PLAN_LABEL: plan().to_json_line()}) == plan()


def test_plan_as_json_keeps_the_keys_of_running_clusters() -> None:
    data = plan().as_json()
    assert (data["closed"], data["image"]) == ("token", plan().image_digest)
    assert not {"protection", "image_digest"} & data.keys()
