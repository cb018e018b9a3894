"""Stages in order, their gates, and the first cause."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from supervised import SERVER, Bench, file_rule, free_port, line_rule, python, service, wait_for

CLIENT_OF_DEAD_SERVER = """
import os, signal, sys, time, urllib.request
print("rollout 0", flush=True)
pid = int(open(sys.argv[2]).read())
os.kill(pid, signal.SIGKILL)
while True:
    urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/", timeout=5).read()
"""


def write_manifest(folder: Path, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.bin").write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    path = folder / "checkpoint.json"
    path.write_text(json.dumps({"schema": 1, "files": {"model.bin": entry}}))
    return path


def test_pass(bench: Bench, tmp_path: Path) -> None:
    port, out = free_port(), tmp_path / "out.txt"
    bench.stage("first", python(f"print('step 1'); open({str(out)!r}, 'w').write('x'); open('metrics.jsonl', 'w')"))
    bench.stage(
        "second",
        python(f"import urllib.request as u; u.urlopen('http://127.0.0.1:{port}/').read(); print('Final', end='')"),
        services=(service("reward", port),),
        needs=(file_rule(out),),
        require=(line_rule("Final"), line_rule("GET / HTTP.* 200", log="reward", count=2)),
        forbid=(line_rule("Traceback"),),
        files=(file_rule(out),),
    )
    bench.start()
    code, err = bench.finish()
    assert (code, bench.states(), bench.state().state) == (0, ["passed", "passed"], "passed")
    second = bench.last("second")
    assert {rule.state for rule in second.gate} == {"held"}
    assert [rule.kind for rule in second.gate] == [
        "need", "port", "service", "require", "require", "forbid", "exit", "listens", "file", "silence", "total",
    ]  # fmt: skip
    assert second.services[0].state == "stopped"
    assert second.exit_code == 0
    assert err.splitlines() == [
        "rlbox: run running",
        "rlbox: first: starting",
        "rlbox: first: running",
        "rlbox: first: passed",
        "rlbox: second: starting",
        "rlbox: second: service reward starting",
        "rlbox: second: service reward ready",
        "rlbox: second: running",
        "rlbox: second: service reward stopped",
        "rlbox: second: passed",
        "rlbox: run passed",
    ]
    assert not (bench.run_dir / ".reserve").exists()
    assert bench.events()[-1]["event"] == "run"


def test_exit_0_without_the_line(bench: Bench) -> None:
    bench.stage("smoke", ("sh", "-c", "echo collecting; echo bye"), require=(line_rule("Final collected"),))
    bench.stage("later", ("true",))
    assert bench.run() == 1
    assert bench.cause().what == (
        "stage smoke exited 0, but stages/1-smoke/stage.log never held a line like /Final collected/; "
        "its last line was: bye"
    )
    assert bench.states() == ["failed", "not started"]


def test_truncated_checkpoint_between_stages(bench: Bench, tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path / "checkpoint", b"x" * 100)
    os.truncate(tmp_path / "checkpoint" / "model.bin", 40)
    bench.stage("rollout", ("true",), needs=(file_rule(manifest, manifest=True),))
    bench.stage("smoke", ("true",))
    assert bench.run() == 5
    assert bench.cause().what == f"stage rollout needs {manifest}: model.bin is truncated: 40 of 100 bytes"
    assert bench.states() == ["failed", "not started"]


def test_a_checkpoint_truncated_under_the_stage_is_the_first_cause(bench: Bench, tmp_path: Path) -> None:
    manifest = write_manifest(tmp_path / "checkpoint", b"x" * 100)
    script = f"truncate -s 40 {tmp_path}/checkpoint/model.bin; exit 3"
    bench.stage("rollout", ("sh", "-c", script), needs=(file_rule(manifest, manifest=True),))
    assert bench.run() == 5
    assert bench.cause().what == (
        f"stage rollout needs {manifest}: model.bin is truncated: 40 of 100 bytes; "
        "then stage rollout ended with exit code 3"
    )


def test_taken_port_names_its_holder(bench: Bench) -> None:
    port = free_port()
    with subprocess.Popen(python(SERVER, str(port)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        bench.stage("rollout", ("true",), services=(service("reward", port),))
        code = bench.run()
        alive, name = holder.poll() is None, psutil.Process(holder.pid).name()
        holder.kill()
    assert code == 5
    assert alive
    assert bench.cause().what == f"port {port} (reward) is taken by {name} (pid {holder.pid})"


def test_killed_server_is_the_cause_not_its_client(bench: Bench, tmp_path: Path) -> None:
    port, pid_file = free_port(), tmp_path / "pid"
    server = f"import os; open({str(pid_file)!r}, 'w').write(str(os.getpid()))\n{SERVER}"
    bench.stage(
        "rollout-only",
        python(CLIENT_OF_DEAD_SERVER, str(port), str(pid_file)),
        services=(service("vllm", port, python(server, str(port))),),
    )
    bench.stage("smoke", ("true",))
    assert bench.run() == 1
    assert bench.cause().what == ("service vllm ended with signal 9 (SIGKILL) while stage rollout-only was running")
    stage = bench.last("rollout-only")
    assert stage.services[0].state == "ended"
    assert stage.services[0].exit_code == -signal.SIGKILL
    assert bench.states() == ["failed", "not started"]


def test_service_dies_before_it_is_ready(bench: Bench) -> None:
    port = free_port()
    bad = ("sh", "-c", "echo loading; echo 'RuntimeError: no weights'; exit 4")
    bench.stage("rollout", ("true",), services=(service("vllm", port, bad),))
    assert bench.run() == 1
    assert bench.cause().what == "service vllm ended with exit code 4 before it was ready"
    assert bench.cause().line == "RuntimeError: no weights"


@pytest.mark.parametrize(
    ("argv", "contains", "answer"),
    [(("sleep", "100"), "", "connection refused"), (None, "absent", "HTTP 200 without 'absent'")],
)
def test_service_never_ready(bench: Bench, argv: tuple[str, ...] | None, contains: str, answer: str) -> None:
    port = free_port()
    never = service("vllm", port, argv, start_s=1.5, contains=contains)
    bench.stage("rollout", ("true",), services=(never,))
    assert bench.run() == 7
    told = rf"service vllm was not ready after [^:]* s\)?: GET http://127.0.0.1:{port}/: {re.escape(answer)}"
    assert re.fullmatch(told, bench.cause().what)


def test_forbidden_line_stops_the_stage(bench: Bench) -> None:
    bench.stage("train", ("sh", "-c", "echo one; echo 'loss nan'; sleep 100"), forbid=(line_rule("loss nan"),))
    assert bench.run() == 1
    cause = bench.cause()
    assert cause.what == "stage train was stopped: its log held the forbidden line /loss nan/"
    assert (cause.where, cause.line) == ("stages/1-train/stage.log:2", "loss nan")
    assert bench.last("train").exit_code == -signal.SIGTERM


def test_what_is_stopped_may_complain(bench: Bench) -> None:
    port = free_port()
    complains = (
        f"import signal\ndef no(*a): print('ERROR late', flush=True); raise SystemExit\nsignal.signal(15, no)\n{SERVER}"
    )
    bench.stage(
        "rollout",
        ("true",),
        services=(service("vllm", port, python(complains, str(port))),),
        forbid=(line_rule("ERROR", log="vllm"),),
    )
    assert bench.run() == 0
    assert "ERROR late" in bench.log("1-rollout/vllm.log")


def test_silence(bench: Bench) -> None:
    bench.stage("train", ("sh", "-c", "echo step 1; sleep 100"), silence_s=1.0)
    assert bench.run() == 7
    assert bench.cause().what == "stage train wrote nothing for 1 s and was stopped"
    broken = [rule for rule in bench.last("train").gate if rule.state == "broken"]
    assert [(rule.kind, rule.seen) for rule in broken] == [("silence", "step 1")]


def test_total(bench: Bench) -> None:
    bench.stage("train", ("sh", "-c", "while :; do echo step; sleep 0.1; done"), total_s=1.5)
    assert bench.run() == 7
    assert bench.cause().what == "stage train ran longer than 1.5 s and was stopped"


def test_missing_program(bench: Bench) -> None:
    bench.stage("train", ("no-such-program-here",))
    assert bench.run() == 1
    assert bench.cause().what == "stage train cannot start no-such-program-here: No such file or directory"


def test_plan_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"schema": 1')
    done = subprocess.run(
        [sys.executable, "-m", "rlbox.supervise", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "plan.json cannot be read" in done.stderr


def test_state_is_live(bench: Bench) -> None:
    bench.stage("train", ("sh", "-c", "echo ready; sleep 100"), require=(line_rule("ready"), line_rule("done")))
    supervisor = bench.start()

    def first_holds() -> bool:
        if not (bench.run_dir / "run.json").exists():
            return False
        return [rule.state for rule in bench.last("train").gate][:2] == ["held", "waiting"]

    wait_for(first_holds)
    assert bench.state().supervisor_pid == supervisor.pid
    supervisor.send_signal(signal.SIGTERM)
    assert bench.finish()[0] == 130
