"""A stage that is a Ray job, against a stand-in for the head that speaks the Jobs API (the real one: engine tests)."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

from supervised import Bench, free_port, line_rule, python, service, wait_for

from rlbox.plan.run import RayPlan

HEAD = """
import http.server, json, os, subprocess, sys
port, temp, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
logs = os.path.join(temp, "session_latest", "logs")
os.makedirs(logs, exist_ok=True)
jobs = {}
class Jobs(http.server.BaseHTTPRequestHandler):
    def answer(self, code, data):
        self.send_response(code); self.end_headers(); self.wfile.write(json.dumps(data).encode())
    def do_GET(self):
        name = self.path.removeprefix("/api/jobs/")
        if not name:
            return self.answer(200, [])
        code = jobs[name].poll()
        status = "RUNNING" if code is None else "FAILED" if code else "SUCCEEDED"
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
    ready = replace(head.ready, url=f"http://127.0.0.1:{port}/api/jobs/")
    bench.stage(
        "smoke",
        python(code),
        services=(replace(head, ready=ready),),
        ray=RayPlan(
            dashboard=f"http://127.0.0.1:{port}", service="ray", temp_dir=str(tmp_path), submission_id="run-smoke"
        ),
        require=(line_rule("^Final collected 8"),),
        silence_s=silence_s,
    )


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
    assert cause.what == "Ray job run-smoke of stage smoke ended FAILED (driver exit code 1)"
    assert cause.line == "ValueError: no deals"
    assert cause.next_step == "Ray says: Job says this"


def test_job_without_the_line(bench: Bench, tmp_path: Path) -> None:
    ray_stage(bench, tmp_path, "print('done')")
    assert bench.run() == 1
    assert "never held a line like /^Final collected 8/; its last line was: done" in bench.cause().what


def test_job_is_refused(bench: Bench, tmp_path: Path) -> None:
    ray_stage(bench, tmp_path, "print('never')", mode="refuse")
    assert bench.run() == 1
    assert bench.cause().what == "Ray job run-smoke of stage smoke ended REFUSED"
    assert bench.cause().next_step == 'Ray says: HTTP 500: "no room"'


def test_silent_job_is_stopped(bench: Bench, tmp_path: Path) -> None:
    ray_stage(bench, tmp_path, "import time; print('up'); time.sleep(600)", silence_s=1.0)
    assert bench.run() == 7
    assert bench.cause().what == "stage smoke wrote nothing for 1 s and was stopped"


def test_interrupted_job(bench: Bench, tmp_path: Path) -> None:
    ray_stage(bench, tmp_path, "import time; print('up'); time.sleep(600)")
    supervisor = bench.start()
    log = bench.run_dir / "stages/1-smoke/stage.log"
    wait_for(lambda: log.exists() and "up" in log.read_text())
    supervisor.send_signal(signal.SIGTERM)
    assert bench.finish()[0] == 130
    assert bench.states() == ["interrupted"]
