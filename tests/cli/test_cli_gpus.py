"""`rlbox gpus`: holders by process id, Ray's nodes by its dashboard."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fakes import Rlbox

from rlbox.system.gpu import GpuStatus

pytestmark = pytest.mark.allow("sockets")
GIB = 1 << 30


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs; this process holds the second."""
    rows = tuple(
        GpuStatus(
            index=number, name="RTX 5090", utilization=0, power_w=50, power_limit_w=575, total_bytes=32 * GIB,
            memory_bytes=number * 30 * GIB, processes=(os.getpid(), 999_999_999) if number else (),
        )
        for number in range(2)
    )  # fmt: skip
    monkeypatch.setattr("rlbox.doctor.gpu_inventory.query_gpus_or_empty", lambda timeout_s: rows)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def head() -> Iterator[str]:
    """A Ray dashboard with one node of two GPUs, as Ray 2.60 answers."""
    raylet = {"nodeManagerAddress": "10.0.0.1", "state": "ALIVE", "resourcesTotal": {"CPU": 8.0, "GPU": 2.0}}
    body = json.dumps({"data": {"summary": [{"raylet": raylet}]}}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("gpus")
def test_who_holds_what(rlbox: Rlbox, head: str) -> None:
    said = rlbox("gpus", "--actor", "1", "--rollout", "1", "--ray", head, "--json")
    assert said.code == 1
    assert said.data["ray"] == [{"address": "10.0.0.1", "alive": True, "gpus": 2}]
    mine, gone = said.data["gpus"][1]["holders"]
    assert mine["pid"] == os.getpid()
    assert "python" in mine["who"]
    assert gone["who"].startswith("not visible from here")
    (problem,) = said.data["problems"]
    assert problem.startswith(f"2 GPUs are needed here, 1 are free: GPU 1: pid {os.getpid()} ")


@pytest.mark.usefixtures("gpus")
def test_all_is_well(rlbox: Rlbox, head: str) -> None:
    said = rlbox("gpus", "--actor", "1", "--total", "2", "--ray", head)
    assert said.code == 0
    assert "Ray    alive  10.0.0.1  2 GPUs\n" in said.out


def test_nothing_here(rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.doctor.gpu_inventory.query_gpus_or_empty", lambda timeout_s: ())
    said = rlbox("gpus", "--ray", "http://127.0.0.1:9")
    assert (said.code, said.out) == (1, "wrong: no GPU here: there is no driver, or it does not answer\n")


@pytest.mark.usefixtures("gpus")
def test_a_held_gpu_ends_with_1_when_nothing_is_asked_for(rlbox: Rlbox, head: str) -> None:
    """As the help says: GPUs that are missing or held."""
    said = rlbox("gpus", "--ray", head)
    assert said.code == 1
    assert f"wrong: 1 of 2 GPUs are free: GPU 1: pid {os.getpid()} " in said.out
