"""What the program of a node does with Ray: its jobs API, logs, the door to its dashboard; the node is this machine."""

from __future__ import annotations

import http.client
import http.server
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clusterfacts import plan, survey

from rlbox.cluster.connection import NodeConnection
from rlbox.cluster.dashboard import Doorway
from rlbox.cluster.jobs import JobsApi
from rlbox.cluster.logs import LogClocks, _grown
from rlbox.cluster.nodes import NodeSpec
from rlbox.cluster.package import JobPackage
from rlbox.cluster.plan import ClusterPlan, PortPlan
from rlbox.cluster.programs.node_ray import RayLogs
from rlbox.cluster.ssh_route import Starts
from rlbox.errors import NodeError, SpecError

TOKEN = "f" * 64
JOB = b'{"submission_id": "job-1", "status": "RUNNING", "driver_exit_code": null}'
pytestmark = pytest.mark.allow("processes", "sockets")


class Played(http.server.BaseHTTPRequestHandler):
    """As much of Ray's dashboard as is asked here; it keeps what came."""

    came: list[tuple[str, str, str, bytes]]

    def do_GET(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        assert self.headers["User-Agent"]  # Ray 2.43 fails without one
        self.came.append((self.command, self.path, self.headers.get("Authorization", ""), body))
        known = {"/api/jobs/": b"[%s]" % JOB, "/api/jobs/job-1": JOB, "/api/jobs/job-1/stop": b'{"stopped": true}'}
        known["/api/jobs/ended"] = JOB.replace(b"RUNNING", b"FAILED")
        status, text = (200, known[self.path]) if self.path in known else (404, b"not found")
        if self.command == "PUT":
            status, text = 200, b"{}"
        if self.path == "/api/jobs/bad":
            status, text = 500, b"Traceback\nRuntimeError: boom"
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def played() -> Iterator[tuple[int, list[Any]]]:
    """The port of a played dashboard, and what it was asked."""
    handler = type("Own", (Played,), {"came": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], handler.came  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


@pytest.fixture
def head(tmp_path: Path) -> Iterator[NodeConnection]:
    link = NodeConnection(NodeSpec(name="local", data=str(tmp_path)), Starts())
    link.open()
    yield link
    link.close()


def own_plan(port: int) -> ClusterPlan:
    made = plan()
    member = replace(made.head, name="local")
    return replace(made, members=(member, *made.members[1:]), ports=PortPlan(base=port - 1, workers=10002))


def test_every_question_has_the_token_of_the_node(
    played: tuple[int, list[Any]], head: NodeConnection, tmp_path: Path
) -> None:
    port, came = played
    made = own_plan(port)
    api = JobsApi(head, made)
    folder = tmp_path / made.folder("local")
    folder.mkdir(parents=True)
    (folder / "auth_token").write_text(TOKEN)
    assert [one.id for one in api.jobs()] == ["job-1"]
    assert api.job("job-1").status == "RUNNING"
    with pytest.raises(SpecError, match="cluster pair has no job job-2") as caught:
        api.job("job-2")
    assert caught.value.next_step == "choose one of: job-1"
    with pytest.raises(NodeError, match=r"Ray refuses it: .*RuntimeError: boom"):
        api.job("bad")
    api.stop("job-1")
    assert {row[2] for row in came} == {f"Bearer {TOKEN}"}
    del came[:]
    JobsApi(head, replace(made, closed="tls")).jobs()
    assert came[0][2] == ""


def test_a_package_gets_there_whole_and_leaves_nothing(
    played: tuple[int, list[Any]], head: NodeConnection, tmp_path: Path
) -> None:
    port, came = played
    made = own_plan(port)
    folder = tmp_path / made.folder("local")
    folder.mkdir(parents=True)
    (folder / "cluster.json").touch()
    (folder / "_ray_pkg_1.zip").write_bytes(b"of a call that was cut")
    file = tmp_path / "package.zip"
    file.write_bytes(bytes(range(256)) * 9000)  # more than two pieces
    with file.open("rb") as source:
        JobsApi(head, made).send(JobPackage(name="_ray_pkg_1.zip", file=source))
    (put,) = [row for row in came if row[0] == "PUT"]
    assert put[1] == "/api/packages/gcs/_ray_pkg_1.zip"
    assert put[3] == file.read_bytes()
    assert [one.name for one in folder.iterdir()] == ["cluster.json"]


def test_a_package_without_a_place(played: tuple[int, list[Any]], head: NodeConnection, tmp_path: Path) -> None:
    file = tmp_path / "package.zip"
    file.write_bytes(b"x")
    with file.open("rb") as source, pytest.raises(NodeError, match="node local: No such file or directory"):
        JobsApi(head, own_plan(played[0])).send(JobPackage(name="_ray_pkg_1.zip", file=source))


@pytest.mark.parametrize(("id_", "stays"), [("job-1", True), ("job-2", False), ("ended", False), ("bad", False)])
def test_what_a_job_is_given_stays_for_no_other(
    played: tuple[int, list[Any]], head: NodeConnection, tmp_path: Path, id_: str, stays: bool
) -> None:
    """The connection ends: a job that goes on has yet to read it; one that has ended, or is none, will not."""
    made = own_plan(played[0])
    path = tmp_path / JobsApi(head, made).give(id_, "export KEY=1\n")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("export KEY=1\n", 0o600)
    head.close()
    assert path.exists() == stays


def test_a_package_that_was_not_sent_whole_goes(
    played: tuple[int, list[Any]], head: NodeConnection, tmp_path: Path
) -> None:
    made = own_plan(played[0])
    (tmp_path / made.folder("local")).mkdir(parents=True)
    file = f"{made.folder('local')}/_ray_pkg_1.zip"
    head.ask("guard-file", disk=str(tmp_path), path=file)
    head.tell({"do": "piece", "disk": str(tmp_path), "file": file, "bytes": 3}, b"abc")
    head.ask("clock")
    assert (tmp_path / file).read_bytes() == b"abc"
    head.close()
    assert not (tmp_path / file).exists()


def test_the_dashboard_comes_through_the_door(played: tuple[int, list[Any]], head: NodeConnection) -> None:
    port, came = played
    doorway = Doorway(head.door(port))
    try:
        for host, status in ((f"127.0.0.1:{doorway.port}", 200), ("evil.example", 421)):
            ask = http.client.HTTPConnection("127.0.0.1", doorway.port, timeout=10)
            ask.request("GET", "/api/jobs/job-1", headers={"Host": host, "User-Agent": "x"})
            answer = ask.getresponse()
            assert (answer.status, answer.read()) == (status, JOB if status == 200 else b"")
    finally:
        doorway.close()
    assert len(came) == 1


def test_logs_are_read_as_they_grow_and_no_link_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "ray/Ab12/session_2025-11-26_10-00-00_000000_1/logs"
    folder.mkdir(parents=True)
    (tmp_path / "ray/Ab12/session_latest").symlink_to(folder.parent)
    log = folder / "job-driver-1.log"
    log.write_text("one\ntwo\nhal")
    (folder / "worker-1.out").symlink_to("/etc/passwd")
    (folder / "other.log").write_text("x\n")
    top, parts = str(tmp_path), ["ray", "Ab12", folder.parent.name, "logs"]
    logs = RayLogs(lambda: (top, parts), ["job-*.log", "worker-*"], 1 << 20)
    assert [(row["file"], row["text"]) for row in logs.new(False)] == [("job-driver-1.log", "one\ntwo\n")]
    assert logs.new(False) == []
    with log.open("a") as file:
        file.write("f\nrest")
    assert [row["text"] for row in logs.new(False)] == ["half\n"]
    assert [row["text"] for row in logs.new(True)] == ["rest"]
    assert RayLogs(lambda: (top, ["ray", "none", "logs"]), ["*"], 10).new(True) == []
    short = RayLogs(lambda: (top, parts), ["job-*.log"], 8)
    assert [row["text"] for row in short.new(True)] == ["rest"]  # from the first whole line on


def test_lines_that_come_late_find_their_place(tmp_path: Path) -> None:
    """What node `b`, whose clock is an hour ahead, wrote first comes here second."""
    now = time.time()
    parts: queue.Queue[Any] = queue.Queue()

    def part(at: float, text: str) -> dict[str, Any]:
        return {"first": False, "now": at, "logs": [{"file": "w.out", "text": text, "at": at}]}

    parts.put(("a", part(now + 2, "second\n")))
    parts.put(("b", part(now + 3600 + 1, "first\n")))
    parts.put(("a", part(now + 3, "third\n")))
    parts.put(("a", NodeError("node a: the connection broke")))
    lines = _grown(parts, LogClocks(survey(offsets={"a": 0.0, "b": 3600.0})))
    assert [next(lines).text for _ in range(3)] == ["first", "second", "third"]
    with pytest.raises(NodeError, match="the connection broke") as caught:
        next(lines)
    assert caught.value.next_step == "the same command again: the cluster lives on"
