"""What a failed stage leaves behind: the first fatal line of each log, the report, the manifest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from supervised import Bench, free_port, python, service

from rlbox.diagnose.signatures import LogSignature, dump_signatures_json

FAILURE = 'Traceback (most recent call last):\n  File "train.py", line 3, in step\nValueError: no data'
NOISY = f"""
import sys
for number in range(500): print("step", number, "loss 0.5")
print({FAILURE!r}, file=sys.stderr, flush=True)
for number in range(500): print("shutting down", number)
raise SystemExit(1)
"""
FLAKY_SERVER = """
import http.server, sys, time
print("RuntimeError: warm-up of the kernel failed, another is used", flush=True)
time.sleep(1)  # the line is read before the service answers, also on busy cores
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        good = self.path == "/"
        if not good: print("torch.OutOfMemoryError: CUDA out of memory", flush=True)
        self.send_response(200 if good else 500); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
CLIENT = """
import sys, time, urllib.request
time.sleep(0.3)
urllib.request.urlopen("http://127.0.0.1:%s/generate" % sys.argv[1])
"""


def evidence(bench: Bench, stage: str = "1-train") -> Path:
    return bench.run_dir / "stages" / stage / "evidence"


def manifest(bench: Bench) -> Any:
    return json.loads((evidence(bench) / "manifest.json").read_text())


def read_report(bench: Bench) -> Any:
    return json.loads((evidence(bench) / "REPORT.json").read_text())


def test_a_failure_in_the_middle_of_noise(bench: Bench) -> None:
    bench.stage("train", python(NOISY))
    assert bench.run() == 1
    cause = bench.cause()
    assert (cause.where, cause.line) == ("stages/1-train/stage.log:503", "ValueError: no data")
    excerpt = (evidence(bench) / "first_fatal.txt").read_text().splitlines()
    assert excerpt[0].startswith("==> stages/1-train/stage.log:503  20")
    assert (excerpt[2], excerpt[102], excerpt[202]) == (
        "     403 step 402 loss 0.5",
        ">    503 ValueError: no data",
        "     603 shutting down 99",
    )
    page = (evidence(bench) / "REPORT.md").read_text()
    assert page.startswith("# train failed: stage train ended with exit code 1\n")
    assert "- **First fatal line**: `ValueError: no data`" in page
    assert "unknown: the fix catalogue has no signature for this" in page
    assert (evidence(bench) / "../../../stages/1-train/stage.log").is_file()  # what the page links to
    assert len(page.splitlines()) < 80


def test_the_manifest_names_every_file_and_the_report_is_a_value(bench: Bench) -> None:
    bench.stage("train", python(NOISY))
    bench.run()
    found = manifest(bench)
    names = {row["name"] for row in found["files"]}
    there = {path.relative_to(evidence(bench)).as_posix() for path in evidence(bench).rglob("*") if path.is_file()}
    assert names == there - {"manifest.json"}
    assert {"REPORT.md", "REPORT.json", "first_fatal.txt", "facts.json", "environment.txt", "packages.txt"} <= names
    for row in found["files"]:
        data = (evidence(bench) / row["name"]).read_bytes()
        assert (row["bytes"], row["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert "resources.jsonl" in names | set(found["missing"])
    report = read_report(bench)
    assert (report["stage"], report["exit_code"]) == ("train", 1)
    assert report["cause"] == bench.cause().as_json()
    assert [(row["log"], row["number"]) for row in report["fatals"]] == [("stages/1-train/stage.log", 503)]
    assert "ValueError: no data" in [moment["what"] for moment in report["story"]]
    times = [moment["at"][:19] for moment in report["story"]]
    assert times == sorted(times)


def test_a_service_that_fails_first_is_the_cause(bench: Bench) -> None:
    port = free_port()
    bench.stage("train", python(CLIENT, str(port)), services=(service("vllm", port, python(FLAKY_SERVER, str(port))),))
    assert bench.run() == 1
    cause = bench.cause()
    assert cause.what == "stage train ended with exit code 1"
    assert (cause.where, cause.line) == ("stages/1-train/vllm.log:2", "torch.OutOfMemoryError: CUDA out of memory")
    report = read_report(bench)
    assert [row["log"] for row in report["fatals"]] == ["stages/1-train/vllm.log", "stages/1-train/stage.log"]
    assert (evidence(bench) / "first_fatal.txt").read_text().count("==> ") == 2


def test_the_catalogue_gives_the_next_step(bench: Bench) -> None:
    name = "ray-not-on-path"
    row = LogSignature(
        cause=name, fix=name, title="No ray", remedy="add it to PATH", pattern="ray: command not found",
    )  # fmt: skip
    bench.stage("train", ("sh", "-c", "echo 'run.sh: line 3: ray: command not found' >&2; exit 127"))
    bench.write_plan()
    (bench.run_dir / "spec").mkdir()
    (bench.run_dir / "spec/signatures.json").write_text(dump_signatures_json([row]))
    assert bench.run() == 1
    assert (bench.cause().known, bench.cause().next_step) == ("ray-not-on-path", "add it to PATH")
    page = (evidence(bench) / "REPORT.md").read_text()
    assert "- **Known cause**: ray-not-on-path: No ray\n- **Next step**: add it to PATH\n" in page


def test_a_killed_stage_without_any_error_is_quoted_by_its_last_line(bench: Bench) -> None:
    bench.stage("train", ("sh", "-c", "echo step 1; echo step 2; kill -9 $$"))
    assert bench.run() == 1
    cause = bench.cause()
    assert cause.what == "stage train ended with signal 9 (SIGKILL)"
    assert (cause.where, cause.line) == ("stages/1-train/stage.log:2", "step 2")
    report = read_report(bench)
    assert (report["fatals"], report["next_step"]) == ([], "")


def test_a_mistake_in_the_evidence_does_not_lose_the_line(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.supervise.failure_report.build_failure_report_json", lambda *facts: 1 / 0)
    bench.stage("train", python(NOISY))
    bench.start()
    code, told = bench.finish()
    assert (code, bench.cause().line) == (1, "ValueError: no data")
    assert "evidence was not written: ZeroDivisionError: division by zero" in told


def test_a_rank_that_failed_explains_why_the_others_hang(bench: Bench) -> None:
    code = "import time; print('[rank3]: ValueError: token id 9', flush=True); time.sleep(600)"
    bench.stage("train", python(code), silence_s=1.0)
    assert bench.run() == 7
    cause = bench.cause()
    assert (cause.kind, cause.line) == ("silence", "[rank3]: ValueError: token id 9")
    names = {row["name"] for row in manifest(bench)["files"]}
    assert {"HANG.md", "hang.json", "REPORT.md"} <= names
    assert "[HANG.md](HANG.md)" in (evidence(bench) / "REPORT.md").read_text()
