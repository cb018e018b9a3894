"""What ssh says of nodes that it does not reach, where nodes are for each other, and the program that they are sent."""

from __future__ import annotations

import ast
import base64
import os
import socket
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from clusterfacts import facts, survey

from rlbox.cluster.connection import ConnectionFolder, NodeConnection, UnreachableNode
from rlbox.cluster.facts import NodeAddress, read_facts
from rlbox.cluster.node_program import node_program, plain
from rlbox.cluster.nodes import NodeSpec
from rlbox.cluster.programs import node_hold, node_net
from rlbox.cluster.ssh_route import Starts, explain_ssh
from rlbox.cluster.survey import Way, askers, candidates, choose_seats, goals_of
from rlbox.errors import NodeError

NOTHING = {"names": [], "image": "", "disk": "/nothing", "record": "nothing"}
CHANGED = """@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
Host key for 10.0.0.2 has changed and you have requested strict checking.
Host key verification failed."""


@pytest.mark.parametrize(
    ("words", "id_", "step"),
    [
        (CHANGED, "host-key-changed", "ssh-keygen -R 10.0.0.2, then `ssh b` once"),
        ("No ED25519 host key is known for b\nHost key verification failed.", "host-key-unknown", "type `ssh b` once"),
        ("ssh: Could not resolve hostname b: Name or service not known", "host-unknown", "~/.ssh/config"),
        ("ann@b: Permission denied (publickey,password).", "login-refused", "ssh-copy-id b"),
        ("bash: line 1: python3: command not found", "no-python", "apt-get install python3"),
        ("channel 2: open failed: administratively prohibited", "no-forwarding", "AllowStreamLocalForwarding yes"),
        ("ssh: connect to host 10.0.0.2 port 22: Connection refused", "unreachable", "make `ssh b true` work"),
        ("", "unreachable", "make `ssh b true` work"),
    ],
)
def test_what_ssh_says(words: str, id_: str, step: str) -> None:
    found = explain_ssh("b", "10.0.0.2", "", words)
    assert (found.id, found.where, found.level) == (id_, "b", "error")
    assert step in found.remedy


def test_a_jump_host_that_is_down_is_named_in_the_nodes_place() -> None:
    words = "ssh: connect to host gate port 22: Connection timed out\nConnection closed by UNKNOWN port 65535"
    found = explain_ssh("b", "10.0.0.2", "gate", words)
    assert (found.id, found.title, found.where) == ("jump-unreachable", "jump host gate: it does not answer", "b")
    assert "`ssh gate true`" in found.remedy
    behind = explain_ssh("b", "10.0.0.2", "gate", "ssh: connect to host 10.0.0.2 port 22: No route to host")
    assert behind.id == "unreachable"
    off = "channel 0: open failed: connect failed: No route to host\nstdio forwarding failed\n"
    told = explain_ssh("b", "10.0.0.2", "gate", f"{off}Connection closed by UNKNOWN port 65535")
    assert (told.id, told.title) == ("unreachable", "it does not answer")
    assert "connect failed: No route to host" in told.seen
    assert "`ssh b true`" in told.remedy


def test_a_node_is_where_all_who_asked_reached_it() -> None:
    two = (
        NodeAddress(interface="eth0", address="192.168.0.2", mtu=1500),
        NodeAddress(interface="ib0", address="10.0.0.2", mtu=4092),
    )
    both = survey(facts("b", addresses=two), seats={})
    ways = [
        Way(source="a", goal="b", address="192.168.0.2", port=1, said="No route to host"),
        Way(source="a", goal="b", address="10.0.0.2", port=1, said=""),
        Way(source="b", goal="a", address="10.0.0.1", port=1, said=""),
    ]
    seats = choose_seats(both, ways)
    assert (seats["b"].address, seats["b"].interface, seats["b"].mtu) == ("10.0.0.2", "ib0", 4092)
    assert choose_seats(both, ways[:1] + ways[2:]).keys() == {"a"}


def test_what_a_name_says_counts_first_where_the_node_has_it() -> None:
    two = tuple(NodeAddress(interface=f"eth{n}", address=f"10.0.{n}.2", mtu=1500) for n in range(2))
    names = {"b": ("10.0.1.2", "203.0.113.9")}
    asked = survey(facts("b", addresses=two))
    asked = replace(asked, facts={"a": facts("a", names=names), "b": asked.facts["b"]})
    assert candidates(asked, "b") == ("10.0.1.2", "10.0.0.2")


def test_local_is_on_the_route_to_the_others_and_not_where_its_default_route_goes() -> None:
    """The head is this machine: eth0 leads away, the node is behind a bridge, and a router lets it reach both."""
    away = NodeAddress(interface="eth0", address="172.17.0.2", mtu=1500)
    near = NodeAddress(interface="rlh-br", address="10.0.0.9", mtu=1400, virtual=True)
    asked = survey()
    asked = replace(
        asked,
        wishes=(NodeSpec(name="local", data="/data"), asked.wishes[1]),
        facts={
            "local": facts("a", addresses=(away, near), names={"local": ("172.17.0.2",), "a": ("172.17.0.2",)}),
            "b": asked.facts["b"],
        },
        seats={},
        routes={"local": ("10.0.0.9",), "b": ("10.0.0.2",)},
    )
    assert goals_of(asked, "local") == ("10.0.0.2",)
    assert goals_of(asked, "b") == ("172.17.0.2",)
    assert candidates(asked, "local") == ("10.0.0.9", "172.17.0.2")
    ways = [Way(source="b", goal="local", address=ip, port=1, said="") for ip in ("172.17.0.2", "10.0.0.9")]
    seat = choose_seats(asked, ways)["local"]
    assert (seat.address, seat.interface, seat.mtu) == ("10.0.0.9", "rlh-br", 1400)


@pytest.mark.allow("processes", "sockets")
def test_the_kernel_says_from_where_it_sends() -> None:
    link = NodeConnection(NodeSpec(name="local", data="/data"), Starts())
    link.open()
    try:
        own = {row["address"] for row in link.ask("facts", **NOTHING)["addresses"]}
        told = link.ask("routes", goals=["127.0.0.1", "192.0.2.1", "no address"])["sources"]
        assert set(told) <= own - {"127.0.0.1"}
    finally:
        link.close()


@pytest.mark.allow("sockets")
def test_who_listens_is_told_the_same_by_the_sockets_and_by_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that has no socket diagnosis, like that of some sandboxes, has tables."""
    own = [socket.socket(socket.AF_INET), socket.socket(socket.AF_INET6), socket.socket(socket.AF_INET6)]
    try:
        for one, address in zip(own, ("127.0.0.3", "::1", "::"), strict=True):
            one.bind((address, 0))
            one.listen()
        wanted = {one.getsockname()[:2][::-1] for one in own}
        inodes = {str(os.fstat(one.fileno()).st_ino) for one in own}

        def told() -> list[tuple[object, ...]]:
            rows = [row for row in node_net.listening() if row["inode"] in inodes]
            return sorted((row["port"], row["address"], row["uid"], row["inode"]) for row in rows)

        asked = told()
        assert {row[:2] for row in asked} == wanted
        with monkeypatch.context() as without:
            without.setattr(node_net, "_TCP", 200)  # a protocol of which it cannot tell: as without its tcp_diag
            assert told() == asked
        monkeypatch.setattr(node_net, "_SOCKETS", 31)  # a family of netlink that does not exist
        assert told() == asked
    finally:
        for one in own:
            one.close()


def test_few_ask_all_and_many_ask_their_neighbours() -> None:
    assert askers(["a", "b", "c"], "b") == ("a", "c")
    many = [f"n{i}" for i in range(20)]
    assert askers(many, "n7") == ("n0", "n6", "n8")
    assert len(askers(many, "n0")) == 19


@pytest.mark.allow("processes")
def test_a_machine_without_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NodeError, match="there is no ssh on PATH") as caught:
        NodeConnection(NodeSpec(name="b", data="/data"), Starts()).open()
    assert caught.value.next_step == "install the OpenSSH client"


@pytest.mark.allow("processes", "sockets")
def test_a_connection_that_broke() -> None:
    """The node `local` is this machine: no ssh is between, and all else is the same."""
    link = NodeConnection(NodeSpec(name="local", data="/data"), Starts())
    link.open()
    try:
        assert link.ask("clock")["clock"] > 0
        assert link.ask("read", disk="/", path="nothing/there") == {"text": ""}
        with pytest.raises(NodeError, match="node local: no such path") as refused:
            link.ask("write", disk="/", path="../x", text="", mode=0o600)
        assert refused.value.next_step == "the same command again"
    finally:
        link.close()
    with pytest.raises(UnreachableNode, match="local: the connection broke: that ends nothing there") as caught:
        link.ask("clock")
    assert caught.value.next_step == "the same command again"


def test_an_answer_that_is_none() -> None:
    with pytest.raises(NodeError, match="node b says what cannot be read: "):
        read_facts("b", {"uid": "nobody"})


def test_the_program_is_one_that_an_old_python_reads() -> None:
    """RHEL 8's own Python is 3.6; what comes by ssh must be words that it knows."""
    text = zlib.decompress(base64.b64decode(node_program())).decode()
    ast.parse(text, feature_version=(3, 6))
    given = (node.args[0] for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and node.args)
    modules = dict(next(ast.literal_eval(one) for one in given if isinstance(one, ast.List)))
    assert {"node_main", "node_files"} <= {*modules}
    for source in modules.values():
        ast.parse(source, feature_version=(3, 6))
        assert "annotations" not in source


def test_what_a_type_checker_reads_stays_here() -> None:
    first = 'from __future__ import annotations\n"""Words."""\nif TYPE_CHECKING:\n    import x\n'
    text = first + "def f(a: int, *b: str) -> Row:\n    c: int = 1\n    return c"
    assert plain(text) == "def f(a, *b):\n    c = 1\n    return c"


def test_the_folder_of_a_killed_process_goes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose process lives stays; one that was killed before it had locked its folder goes at once, too."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "rlbox-node-left"
    (left / "n").mkdir(parents=True)
    (tmp_path / "rlbox-node-made").mkdir()
    one = ConnectionFolder()
    (one.path / "engine").touch()
    other = ConnectionFolder()
    assert not left.exists()
    assert (one.path / "engine").exists()
    for folder in (one, other, other):
        folder.remove()
    assert not list(tmp_path.iterdir())


def test_no_process_takes_the_folder_that_another_has_just_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def make(_: int) -> bool:
        folder = ConnectionFolder()
        there = folder.path.is_dir()
        folder.remove()
        return there

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(make, range(400)))
    assert not list(tmp_path.iterdir())


def test_the_folder_that_a_power_cut_left_on_a_node_goes_with_the_next(tmp_path: Path) -> None:
    """One whose program lives stays, and what is no connection's."""
    left, other, mine = (tmp_path / f"rlbox-{digit * 16}" for digit in "abc")
    for path in (left, other, tmp_path / "rlbox-here-1"):
        path.mkdir()
    (left / "lock").touch()
    node_hold.make_folder(str(mine))
    node_hold.make_folder(str(tmp_path / f"rlbox-{'d' * 16}"))
    assert sorted(path.name[6] for path in tmp_path.iterdir()) == ["b", "c", "d", "h"]
