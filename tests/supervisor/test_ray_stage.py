"""A stage that is a Ray job, against a stand-in for the head that speaks the Jobs API (the real one: engine tests)."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

from supervised import Bench, free_port, line_rule, python, service, wait_for

from rlbox.job.gate import Ready
from rlbox.job.plan import RayJobPlan

HEAD = """
import http.server, json, os, subprocess, sys
port, temp, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
session = "session_own" if mode == "own" else "session_latest"
logs = os.path.join(temp, session, "logs")
os.makedirs(logs, exist_ok=True)
jobs = {}
class Jobs(http.server.BaseHTTPRequestHandler):
    def answer(self, code, data):
        self.send_response(code); self.end_headers(); self.wfile.write(json.dumps(data).encode())
    def do_GET(self):
        if self.path == "/api/version":
            return self.answer(200, {"ray_version": "2.60.0", "session_name": session})
        if self.path.startswith("/nodes"):
            node = {"nodeManagerAddress": "10.0.0.7", "raylet": {"state": "DEAD", "stateMessage": "lost"}}
            return self.answer(200, {"data": {"summary": [node]}})
        if self.path.startswith("/api/v0"):
            return self.answer(404, "none")
        name = self.path.removeprefix("/api/jobs/")
        if not name:
            return self.answer(200, [])
        code = jobs[name].poll()
        status = "RUNNING" if code is None else "FAILED" if code and mode != "lie" else "SUCCEEDED"
        code = None if mode == "mute" else code
        self.answer(200, {"status": status, "driver_exit_code": code, "message": "Job says this\\nand more"})
    def do_POST(self):
        if self.path.endswith("/stop"):
            jobs[self.path.split("/")[-2]].terminate()
            return self.answer(200, {"stopped": True})
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if mode == "refuse":
            return self.answer(500, "no room")
        log = open(os.path.join(logs, "job-driver-" + body["submission_id"] + ".log"), "wb")
        env = {**os.environ, **body["runtime_env"]["env_vars"]}
        jobs[body["submission_id"]] = subprocess.Popen(["sh", "-c", "exec " + body["entrypoint"]], env=env, stdout=log, stderr=log)
        self.answer(200, {"submission_id": body["submission_id"]})
http.server.HTTPServer(("127.0.0.1", port), Jobs).serve_forever()
"""  # noqa: E501


def ray_stage(bench: Bench, tmp_path: Path, code: str, *, mode: str = "", silence_s: float = 60.0) -> None:
    port = free_port()
    head = service("ray", port, python(HEAD, str(port), str(tmp_path), mode), contains="")
    ready = Ready(url=f"http://127.0.0.1:{port}/api/jobs/")
    bench.stage(
        "smoke",
        python(code),
        services=(replace(head, ready=ready),),
        ray=RayJobPlan(
            dashboard=f"http://127.0.0.1:{port}", service="ray", temp_dir=str(tmp_path), submission_id="run-smoke"
        ),
        require=(line_rule("^Final collected 8"),),
        silence_s=silence_s,
    )


def test_a_job_that_succeeded_with_another_exit_code_of_its_driver(bench: Bench, tmp_path: Path) -> None:
    ray_stage(bench, tmp_path, "print('Final collected 8'); raise SystemExit(3)", mode="lie")
    assert bench.run() == 1
    gate = [(rule.rule, rule.state, rule.seen) for rule in bench.last("smoke").gate if rule.kind in ("exit", "ray")]
    assert gate == [("driver_exit_code 0", "broken", "exit code 3"), ("job SUCCEEDED", "held", "SUCCEEDED")]
    assert (bench.cause().kind, bench.cause().what) == ("exit", "stage smoke ended with exit code 3")


def test_a_head_that_tells_no_exit_code(bench: Bench, tmp_path: Path) -> None:
    ray_stage(bench, tmp_path, "print('Final collected 8')", mode="mute")
    assert bench.run() == 0
    assert [rule.seen for rule in bench.last("smoke").gate if rule.kind == "exit"] == ["SUCCEEDED, Ray tells no code"]


def test_job_succeeds(bench: Bench, tmp_path: Path) -> None:
    ray_stage(bench, tmp_path, "import os; print('(W pid=3) Final collected 8', os.environ['RLBOX_STAGE'])")
    assert bench.run() == 0
    stage = bench.last("smoke")
    assert (stage.state, stage.ray_status, stage.exit_code) == ("passed", "SUCCEEDED", 0)
    assert bench.log("1-smoke/stage.log") == "(W pid=3) Final collected 8 smoke\n"
    assert [(rule.kind, rule.state) for rule in stage.gate if rule.kind in ("exit", "ray")] == [
        ("exit", "held"),
        ("ray", "held"),
    ]


def test_job_fails(bench: Bench, tmp_path: Path) -> None:
    ray_stage(bench, tmp_path, "raise ValueError('no deals')")
    assert bench.run() == 1
    cause = bench.cause()
    assert cause.what == "Ray job run-smoke of stage smoke ended FAILED (driver exit code 1): Job says this"
    assert cause.line == "ValueError: no deals"


def test_what_the_head_and_its_workers_said_is_kept(bench: Bench, tmp_path: Path) -> None:
    logs = tmp_path / "session_latest/logs"
    logs.mkdir(parents=True)
    (logs / "worker-ab-01000000-7.err").write_text("step 1\nRuntimeError: CUDA error: out of memory\n")
    (logs / "worker-cd-01000000-8.err").write_text("step 1\nstep 2\n")
    (logs / "raylet.out").write_text("raylet is up\n")
    ray_stage(bench, tmp_path, "raise ValueError('no deals')")
    assert bench.run() == 1
    folder = bench.run_dir / "stages/1-smoke/evidence"
    status = json.loads((folder / "ray/status.json").read_text())
    assert (status["version"], status["jobs"]) == ("2.60.0", [])
    assert status["nodes"] == [{"nodeManagerAddress": "10.0.0.7", "state": "DEAD", "stateMessage": "lost"}]
    assert status["dead_actors"].startswith("not told: ")
    text = (folder / "ray/logs.txt").read_text()
    assert "==> worker-ab-01000000-7.err <==\nstep 1\nRuntimeError: CUDA error: out of memory\n" in text
    assert "==> raylet.out <==\nraylet is up\n" in text
    assert "worker-cd" not in text
    page = (folder / "REPORT.md").read_text()
    assert "- **Ray job**: run-smoke, FAILED\n" in page


def test_job_is_refused(bench: Bench, tmp_path: Path) -> None:
    ray_stage(bench, tmp_path, "print('never')", mode="refuse")
    assert bench.run() == 1
    assert bench.cause().what == 'Ray job run-smoke of stage smoke ended REFUSED: HTTP 500: "no room"'


def test_interrupted_job(bench: Bench, tmp_path: Path) -> None:
    ray_stage(bench, tmp_path, "import time; print('up'); time.sleep(600)")
    supervisor = bench.start()
    log = bench.run_dir / "stages/1-smoke/stage.log"
    wait_for(lambda: log.exists() and "up" in log.read_text())
    supervisor.send_signal(signal.SIGTERM)
    assert bench.finish()[0] == 130
    assert bench.states() == ["interrupted"]
