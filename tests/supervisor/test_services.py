"""Services: what proves that they do their work, that they go on doing it, and those that several stages share."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from supervised import Bench, file_rule, free_port, line_rule, python, service

from rlbox.job.gate import FileRule, Ready
from rlbox.job.plan import ServicePlan

# Answers its process id; `/mute` makes it take requests and never answer, `/die` makes it end a moment later.
SERVER = """
import http.server, os, sys, threading, time
muted = threading.Event()
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("asked for", self.path, flush=True)
        if muted.is_set():
            time.sleep(1000)
        if self.path == "/mute":
            muted.set()
        if self.path == "/die":
            threading.Timer(0.3, os._exit, [7]).start()
        status = 404 if self.path == "/health" else 200
        body = b'{"error": {"message": "engine is dead"}}' if self.path == "/broken" else str(os.getpid()).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
class Server(http.server.ThreadingHTTPServer):
    allow_reuse_address = daemon_threads = True
server = Server(("127.0.0.1", int(sys.argv[1])), Answer)
print("loading", "weights", flush=True)
print("\\x1b[32mINFO\\x1b[0m: Application startup complete.", flush=True)
server.serve_forever()
"""
ASK = """
import sys, time, urllib.request
for path in sys.argv[2:]:
    print(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}{path}").read().decode(), flush=True)
"""
ASK_AND_WAIT = ASK + "\ntime.sleep(60)"


def server(name: str, port: int, *, code: str = SERVER, start_s: float = 30.0, **more: Any) -> ServicePlan:
    """Return a service; fields of its `Ready` and of `ServicePlan` are taken from `more`."""
    asked = {name: more.pop(name) for name in Ready.model_fields if name in more}
    made = service(name, port, python(code, str(port)), start_s=start_s, contains="")
    ready = Ready(**{"url": made.ready.url, **asked})
    return dataclasses.replace(made, ready=ready, **more)


def ask(port: int, *paths: str, code: str = ASK) -> tuple[str, ...]:
    return python(code, str(port), *paths)


def test_a_service_that_never_shows_it_works(bench: Bench) -> None:
    port = free_port()
    bench.stage("one", python("pass"), services=(server("vllm", port, start_s=1.0, line="never said"),))
    assert bench.run() == 7
    asked = f"GET http://127.0.0.1:{port}/ and a line like /never said/"
    assert bench.cause().kind == "ready"
    assert f": {asked}: " in bench.cause().what


def test_a_service_that_answers_no_more_is_found(bench: Bench) -> None:
    port = free_port()
    bench.stage("one", ask(port, "/mute", code=ASK_AND_WAIT), services=(server("reward", port, answer_s=1.0),))
    assert bench.run() == 7
    assert bench.cause().kind == "silence"
    assert "service reward has not answered for 1 s while stage one was running: GET http" in bench.cause().what
    assert bench.cause().where == "stages/1-one/reward.log"


def test_a_service_that_two_stages_share_stays_up(bench: Bench) -> None:
    kept, other = free_port(), free_port()
    services = (server("vllm", kept, keep=True, line="startup complete"), server("reward", other))
    bench.stage("one", ask(kept, "/a"), services=services)
    bench.stage("two", ask(kept, "/b"), services=services, require=(line_rule("asked for /b", log="vllm"),))
    bench.stage("three", ask(other, "/c"), services=services[1:])
    assert bench.run() == 0
    assert bench.log("1-one/stage.log") == bench.log("2-two/stage.log")  # one process answered both
    assert "asked for /a" in bench.log("1-one/vllm.log")
    assert "asked for /a" not in bench.log("2-two/vllm.log")
    assert [service.state for service in bench.last("one").services] == ["kept", "stopped"]
    assert [service.state for service in bench.last("two").services] == ["stopped", "stopped"]
    kinds = {rule.rule: rule.state for rule in bench.last("two").gate}
    assert set(kinds.values()) == {"held"}
    rows = [json.loads(line) for line in (bench.run_dir / "resources.jsonl").read_text().splitlines()]
    assert any("vllm" in row["parts"] for row in rows if row["stage"] == "two")


@pytest.mark.parametrize("fails", ["file", "next"])
def test_a_shared_service_is_stopped_at_a_failure(bench: Bench, fails: str) -> None:
    port = free_port()
    shared = server("vllm", port, keep=True)
    missing = (file_rule(bench.run_dir / "missing"),) if fails == "file" else ()
    bench.stage("one", ask(port, "/"), services=(shared,), files=missing)
    bench.stage("two", python("raise SystemExit(3)"), services=(shared,))
    assert bench.run() == 1  # `finish` sees that nothing is left
    states = {service.state for stage in bench.state().stages for service in stage.services}
    assert states <= {"kept", "stopped", "waiting"}
    assert bench.last("one").services[0].state == ("kept" if fails == "next" else "stopped")


def test_a_shared_service_that_ends_between_two_stages_is_named(bench: Bench) -> None:
    port = free_port()
    shared = server("vllm", port, keep=True)
    written = FileRule(path=str(bench.run_dir / "run.json"), settled_s=1.5)  # keeps the stages apart
    bench.stage("one", ask(port, "/die"), services=(shared,), files=(written,))
    bench.stage("two", ask(port, "/"), services=(shared,))
    assert bench.run() == 1
    assert bench.states() == ["passed", "failed"]
    assert bench.cause().what == "service vllm ended with exit code 7 between stages one and two"
    assert bench.last("two").services[0].exit_code == 7
