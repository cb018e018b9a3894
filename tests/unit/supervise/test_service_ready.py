"""What shows that a service does its work, and that it goes on doing it."""

from __future__ import annotations

import http.server
import re
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import CHECKOUT

from rlbox.config.schema import validate_spec
from rlbox.errors import SpecError
from rlbox.foreign import parse_untrusted_toml
from rlbox.job.gate import Ready
from rlbox.job.job import Job, Service
from rlbox.job.params import resolve_params
from rlbox.job.plan import ProcessPaths, ServicePlan, plan_run
from rlbox.logs.lines import LineSplitter
from rlbox.supervise.services import ActivityExtendedStartLimit, RunningService, find_port_or_url_problem
from rlbox.system.counters import ActivitySample, ProcessUsage
from rlbox.values import Command

pytestmark = pytest.mark.allow("sockets")


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers as a service does that is up, and as those do that only look so."""

    bodies = {  # noqa: RUF012
        "/good": b'{"data": [{"id": "policy"}]}',
        "/broken": b'{"error": {"message": "engine is dead"}}',
        "/words": b"Internal Server Error",
    }
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = self.bodies.get(self.path)
        if self.path == "/token":  # as a Ray head that wants one
            body = b"{}" if self.headers["authorization"] == "Bearer mine" else None
        self.send_response(200 if body else 404)
        self.send_header("content-length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that answers."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


class Started:
    """A stand-in for the processes of a run: the service is up already."""

    def start(self, command: Command, output: int, *, stage: str, part: str) -> None:
        return None


def running(ready: Ready, **more: Any) -> RunningService:
    plan = ServicePlan(
        name="vllm", title="", argv=("serve",), env={}, ports={}, ready=ready, start_s=30.0, log="vllm.log", **more
    )
    return RunningService(plan, Started(), Command(argv=("serve",)), -1, "one")  # type: ignore[arg-type]


def fake_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time that services see, in seconds; the test sets it."""
    now = [100.0]
    monkeypatch.setattr("rlbox.supervise.services.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def wait_for(service: RunningService, answer: str) -> None:
    until = threading.Event()
    for _ in range(600):
        if service.readiness_problem == answer:
            return
        until.wait(0.02)
    pytest.fail(f"{service.readiness_problem} is not {answer}")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("good", ""),
        ("health", "HTTP 404"),
        ("broken", 'HTTP 200 with an error: {"message": "engine is dead"}'),
        ("words", "HTTP 200 with an error: Internal Server Error"),
    ],
)
def test_a_request_proves_it_only_with_a_good_answer(port: int, path: str, said: str) -> None:
    assert find_port_or_url_problem(Ready(url=f"http://127.0.0.1:{port}/{path}")) == said


def test_a_head_with_a_token_gets_it(port: int) -> None:
    ready = Ready(url=f"http://127.0.0.1:{port}/token")
    assert find_port_or_url_problem(ready) == "HTTP 404"
    assert find_port_or_url_problem(ready, {"Authorization": "Bearer mine"}) == ""


def test_a_port_proves_it_when_it_takes_a_connection(port: int) -> None:
    assert find_port_or_url_problem(Ready(url="", port=port)) == ""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        free = closed.getsockname()[1]
    assert find_port_or_url_problem(Ready(url="", port=free)) == f"port {free}: Connection refused"


def test_a_line_proves_it_whatever_colours_and_prefixes_it_has(port: int) -> None:
    service = running(Ready(url=f"http://127.0.0.1:{port}/good", line="^INFO: Application startup complete"))
    missing = "no line like /^INFO: Application startup complete/ yet"
    wait_for(service, missing)
    cutter = LineSplitter()
    service.record_ready_line_if_present(cutter.feed(b"loading\nApplication startup\n"))
    assert (service.has_been_ready, service.readiness_problem) == (False, missing)
    service.record_ready_line_if_present(
        cutter.feed(b"(APIServer pid=3) \x1b[32mINFO\x1b[0m: Application startup complete.\nmore\n")
    )
    assert (service.has_been_ready, service.readiness_problem) == (True, "")
    service.request_probe_stop()


def test_a_service_that_is_used_is_asked_again(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = fake_clock(monkeypatch)
    service = running(Ready(url=f"http://127.0.0.1:{port}/good"), answer_s=0.4)
    wait_for(service, "")
    service.begin_liveness_checks()
    count = len(Answer.asked)
    while len(Answer.asked) < count + 3:
        threading.Event().wait(0.02)
    assert not service.is_unresponsive
    monkeypatch.setitem(Answer.bodies, "/good", b'{"status": "unhealthy"}')
    wait_for(service, 'HTTP 200 with an error: {"status": "unhealthy"}')
    now[0] += 0.3
    assert not service.is_unresponsive
    now[0] += 0.2
    assert service.is_unresponsive
    service.request_probe_stop()


def test_one_that_was_kept_must_prove_it_anew(port: int) -> None:
    service = running(Ready(url=f"http://127.0.0.1:{port}/good", line="up"))
    service.record_ready_line_if_present(LineSplitter().feed(b"up\n"))
    wait_for(service, "")
    service.begin_liveness_checks()
    service.restart_readiness_probe()
    wait_for(service, "")
    assert service.has_been_ready
    service.request_probe_stop()


SPEC: dict[str, Any] = {
    "name": "job",
    "title": "a job",
    "target": "local",
    "params": {"word": {"default": "up (now)", "help": "what it says"}},
    "ports": {"http": 8100, "other": 8101},
    "stages": [{"name": "one", "title": "one", "command": ["true"], "services": ["vllm"]}],
}


def spec_of(ready: dict[str, Any], **more: Any) -> dict[str, Any]:
    service = {"name": "vllm", "title": "vllm", "command": ["serve"], "ports": ["http"], "ready": ready, **more}
    return {**SPEC, "services": [service]}


@pytest.mark.parametrize(
    ("ready", "more", "said"),
    [
        ({}, {}, "give a url, a line or a port"),
        ({"line": "(?=x)"}, {}, "line"),
        ({"port": "other"}, {}, "services.vllm.ready.port: unknown port of the service 'other'"),
        ({"line": "up"}, {"answer_s": 10}, "services.vllm.answer_s: needs ready.url"),
        ({"url": "127.0.0.1"}, {}, "is not an address"),
        ({"line": "up"}, {"answer_s": -1}, "answer_s"),
    ],
)
def test_what_a_spec_must_not_say(ready: dict[str, Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)):
        validate_spec(Job, spec_of(ready, **more), "jobs/job.toml")


def test_a_plan_has_the_line_and_the_port_filled_in() -> None:
    job = validate_spec(Job, spec_of({"line": "^it is {param.word}", "port": "http"}, keep=True), "jobs/job.toml")
    paths = ProcessPaths(run="/run", job="/job", data="/data", python="python")
    plan = plan_run(job, resolve_params(job, "", {}), paths, run_id="r", place="here", target="local")
    [service] = plan.stages[0].services
    assert service.ready == Ready(url="", line=r"^it is up\ \(now\)", port=8100)
    assert (service.keep, service.answer_s) == (True, 0.0)


def test_the_services_of_the_guide_are_specs() -> None:
    [block] = re.findall(r"```toml\n(.*?)```", (CHECKOUT / "docs/report.md").read_text(), re.DOTALL)
    found = [validate_spec(Service, row, "docs/report.md") for row in parse_untrusted_toml(block)["services"]]
    assert [(service.name, service.keep, bool(service.ready.url)) for service in found] == [
        ("vllm", True, True),
        ("sandbox", False, False),
    ]


@pytest.mark.parametrize(
    ("growth_per_s", "stopped_at_s"),
    [
        ({}, 38),
        ({"cpu_s": 0.03, "read_bytes": 3000}, 38),
        ({"read_bytes": 2_000_000}, 301),
        ({"resident_bytes": 5_000_000}, 301),
        ({"cpu_s": 1.0}, 62),  # a server that polls for ever looks like one that compiles
        ({"cpu_s": 0.1, "main_thread_run_delay_s": 0.9}, None),  # others have the machine
    ],
)
def test_start_limit_of_30_s_lasts_while_the_service_gets_on(
    monkeypatch: pytest.MonkeyPatch, growth_per_s: dict[str, float], stopped_at_s: int | None
) -> None:
    now = fake_clock(monkeypatch)

    def probe(pids: object, *, with_gpus: bool) -> ActivitySample:
        grown: dict[str, Any] = {"cpu_s": 0.0, "resident_bytes": 0}
        grown |= {name: (now[0] - 100) * growth for name, growth in growth_per_s.items()}
        process = ProcessUsage(pid=1, start_ticks=1, name="vllm", state="S", minor_faults=0, major_faults=0, **grown)
        return ActivitySample(
            time_s=now[0], received_bytes=0, sent_bytes=0, loopback_bytes=0, gpus=(), processes=(process,)
        )

    monkeypatch.setattr("rlbox.supervise.services.probe_machine_and_process_activity", probe)
    limit = ActivityExtendedStartLimit(30.0, lambda: (1,))
    while limit.elapsed_s < 305 and not limit.poll_exceeded_without_progress():
        now[0] += 1
    assert (limit.elapsed_s if limit.poll_exceeded_without_progress() else None) == stopped_at_s
