"""Causes of stages: how processes ended, exit codes, and runs that were lost."""

from __future__ import annotations

import pytest

from rlbox.diagnose.cause import (
    Cause,
    CauseKind,
    ExitInfo,
    describe_exit,
    get_exit_code,
    make_container_exit_info,
    make_disk_full_cause,
    make_lost_run_cause,
    make_port_conflict_cause,
    make_process_exit_info,
)
from rlbox.gate.gate import MissingLine
from rlbox.job.gate import Ready, RequireRule
from rlbox.job.plan import RayPlan, ServicePlan, StagePlan
from rlbox.supervise.causes import (
    explain_failed_ray_job,
    explain_missing_line,
    explain_out_of_memory,
    explain_service_exit,
    explain_slow_service_start,
)
from rlbox.supervise.ray_jobs import RayJobInfo

VLLM = ServicePlan(
    name="vllm",
    title="",
    argv=("vllm",),
    env={},
    ports={},
    ready=Ready(url="http://127.0.0.1:1/", method="POST", body="", contains=""),
    start_s=90,
    log="vllm.log",
)
STAGE = StagePlan(
    name="smoke",
    title="",
    directory="stages/3-smoke",
    argv=("true",),
    env={},
    services=(VLLM,),
    needs=(),
    ray=None,
    require=(),
    forbid=(),
    files=(),
    total_s=1,
    silence_s=1,
)


@pytest.mark.parametrize(
    ("code", "text"),
    [(3, "exit code 3"), (-9, "signal 9 (SIGKILL)"), (-15, "signal 15 (SIGTERM)"), (-99, "signal 99")],
)
def test_ended(code: int, text: str) -> None:
    assert describe_exit(code) == text


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("exit", 1), ("service", 1), ("forbid", 1), ("require", 1), ("file", 1), ("ray", 1), ("oom", 1), ("program", 1),
        ("port", 5), ("need", 5), ("disk", 5),
        ("ready", 7), ("silence", 7), ("total", 7), ("busy", 7), ("throttled", 7),
        ("interrupted", 130), ("bug", 3),
    ],
)  # fmt: skip
def test_exit_codes(kind: CauseKind, code: int) -> None:
    assert get_exit_code(Cause(kind=kind, what="")) == code


def test_a_passed_run_exits_0() -> None:
    assert get_exit_code(None) == 0


def test_sentences() -> None:
    ray = RayPlan(dashboard="", service="ray", temp_dir="", submission_id="run-smoke")
    rule = RequireRule(pattern="Final", log="vllm", count=2, why="")
    dead = explain_service_exit(STAGE, VLLM, -9, "while stage smoke was running")
    failed = RayJobInfo(status="FAILED", exit_code=1, message="Runtime env setup failed\nmore")
    exited = RayJobInfo(status="FAILED", exit_code=1, message="Job entrypoint command failed with exit code 1\nmore")
    assert [
        dead.what,
        explain_slow_service_start(STAGE, VLLM, "HTTP 503", 91.0).what,
        explain_slow_service_start(STAGE, VLLM, "HTTP 503", 400.0).what,
        make_port_conflict_cause("reward", 18431, "python3 (pid 123)").what,
        explain_failed_ray_job(STAGE, ray, failed).what,
        explain_failed_ray_job(STAGE, ray, exited).what,
        explain_missing_line(STAGE, MissingLine(rule, 1), "bye").what,
        explain_missing_line(STAGE, MissingLine(rule, 0), "").what,
        make_disk_full_cause("/data", 0).what,
        explain_out_of_memory(dead, 4 << 30).what,
    ] == [
        "service vllm ended with signal 9 (SIGKILL) while stage smoke was running",
        "service vllm was not ready after 1 min 30 s: POST http://127.0.0.1:1/: HTTP 503",
        "service vllm was not ready after 6 min 40 s (limit 1 min 30 s): POST http://127.0.0.1:1/: HTTP 503",
        "port 18431 (reward) is taken by python3 (pid 123)",
        "Ray job run-smoke of stage smoke ended FAILED (driver exit code 1): Runtime env setup failed",
        "Ray job run-smoke of stage smoke ended FAILED (driver exit code 1)",
        "stage smoke exited 0, but stages/3-smoke/vllm.log only 1 times, not 2, held a line like /Final/; "
        "its last line was: bye",
        "stage smoke exited 0, but stages/3-smoke/vllm.log never held a line like /Final/; it is empty",
        "data disk full: 0 B free at /data",
        "out of memory: container limit 4.3 GB; then service vllm ended with signal 9 (SIGKILL) while stage smoke was "
        "running",
    ]
    assert dead.where == "stages/3-smoke/vllm.log"


WHEN = "while stage train was running"


@pytest.mark.parametrize(
    ("last", "what"),
    [
        (
            make_process_exit_info(-9, ""),
            "the supervisor was killed (signal 9 (SIGKILL)) while stage train was running",
        ),
        (
            make_process_exit_info(7, "no secrets\n"),
            "the supervisor died with exit code 7 while stage train was running: no secrets",
        ),
        (
            make_container_exit_info("c", 137, out_of_memory=False, note=""),
            "the supervisor was killed (signal 9 (SIGKILL)) while stage train was running",
        ),
        (
            make_container_exit_info("c", 137, out_of_memory=True, note=""),
            "out of memory: the engine ended container c while stage train was running",
        ),
        (
            make_container_exit_info("c", 255, out_of_memory=False, note=""),
            "the engine lost container c (exit code 255: it was restarted or killed) while stage train was running",
        ),
        (
            make_container_exit_info("c", 1, out_of_memory=False, note=""),
            "the supervisor died with exit code 1 " + WHEN,
        ),
        (
            ExitInfo(kind="removed", container="c"),
            "container c was removed, not by rlbox, while stage train was running",
        ),
        (
            ExitInfo(kind="elsewhere", host="a"),
            "the supervisor at host a is gone while stage train was running",
        ),
        (ExitInfo(kind="rebooted"), "the machine was restarted while stage train was running"),
        (ExitInfo(kind="restarted"), "the container that rlbox runs in was restarted while stage train was running"),
        (
            ExitInfo(kind="gone"),
            "the supervisor is gone without a word (killed, with all that watched over it) " + WHEN,
        ),
    ],
)
def test_every_end_is_named(last: ExitInfo, what: str) -> None:
    cause = make_lost_run_cause(last, WHEN, "smoke-1")
    assert cause.what == what
    assert cause.kind == ("oom" if last.kind == "memory" else "lost")


def test_the_next_step_is_to_go_on() -> None:
    assert make_lost_run_cause(ExitInfo(kind="gone"), WHEN, "smoke-1") == Cause(
        kind="lost",
        what="the supervisor is gone without a word (killed, with all that watched over it) " + WHEN,
        next_step="rlbox run --resume smoke-1",
    )
