"""A run directory as hours of training leave it: small, the same every time, with everything a report can show."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from datetime import datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from rlbox.diagnose.cause import Cause
from rlbox.gate.line_rules import RuleState
from rlbox.job.plan import ProcessPaths, RunPlan
from rlbox.record.state import RunState, ServiceState, StageState, write_run_state
from rlbox.secrets.masks import SecretMasker

BEGAN = datetime(2026, 11, 20, 8, 0, tzinfo=timezone.utc)
FATAL = "torch.OutOfMemoryError: CUDA out of memory <script>alert(1)</script>"
PHASES = ("data", "model load", *("rollout", "training", "weight sync") * 3, "checkpoint")
CAUSE = Cause(
    kind="forbid",
    what="stage smoke was stopped: its log held the forbidden line /CUDA out of memory/ (out of memory)",
    where="stages/3-smoke/stage.log:421",
    line=FATAL,
    next_step="lower rollout_batch_size",
    known="free-memory-below-utilization",
)
STAGES = (
    ("train-only", 0, 3600, "passed", ()),
    ("rollout-only", 3600, 5400, "passed", ("reward", "vllm")),
    ("smoke", 5400, 20000, "failed", ("reward", "vllm", "ray")),
)
TITLES = {"train-only": "supervised fine-tuning; no server runs", "rollout-only": "generate and score"}


def iso(seconds: float) -> str:
    return (BEGAN + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def write_run(run_dir: Path, *, samples: int = 400, steps: int = 200) -> RunState:
    """Write a failed run of three stages: two passed, then one that ran out of memory."""
    chance = random.Random(5)
    run_dir.mkdir(parents=True)
    state = RunState(
        run_id=run_dir.name, job="holdem", target="a800-cn", place="docker", profile="full", supervisor_pid=7,
        state="failed", started_at=iso(0), ended_at=iso(20010), exit_code=1,
        stages=tuple(_stage(number, *facts) for number, facts in enumerate(STAGES, start=1)),
    )  # fmt: skip
    write_run_state(run_dir, state, SecretMasker({}))
    rows = [row for facts in STAGES for row in _events(*facts)]
    (run_dir / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"t": "torn')
    used = [_sample(20000 * n / samples, chance) for n in range(samples)]
    (run_dir / "resources.jsonl").write_text("".join(json.dumps(row) + "\n" for row in used))
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _metrics(steps, chance)))
    (run_dir / "plan.json").write_text(json.dumps(_plan()))
    for number, (name, begin, end, _, services) in enumerate(STAGES, start=1):
        folder = run_dir / f"stages/{number}-{name}"
        folder.mkdir(parents=True)
        _write_log(
            folder / "stage.log", [_verl(n, chance) for n in range(steps)] if name == "smoke" else [], begin, end
        )
        if "vllm" in services:
            _write_log(folder / "vllm.log", [_vllm(chance) for _ in range(steps)], begin, end)
    _write_evidence(run_dir / "stages/3-smoke/evidence")
    return state


def write_wide_run(run_dir: Path, stages: int) -> RunState:
    """Write a passed run of many stages with services, as an evaluation of every checkpoint leaves it."""
    run_dir.mkdir(parents=True)
    made, rows = [], []
    for n in range(stages):
        facts = (f"evaluate-{n:04d}", 600 * n, 600 * n + 590, "passed", ("vllm", "sandbox", "reward"))
        made.append(dataclasses.replace(_stage(n + 1, *facts), cause=None))
        rows += _events(*facts)
    state = RunState(
        run_id=run_dir.name, job="sft", target="vast-5090", place="here", profile="", supervisor_pid=7, state="passed",
        started_at=iso(0), ended_at=iso(600 * stages), exit_code=0, stages=tuple(made),
    )  # fmt: skip
    write_run_state(run_dir, state, SecretMasker({}))
    (run_dir / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return state


def _stage(number: int, name: str, begin: int, end: int, state: Any, services: tuple[str, ...]) -> StageState:
    held = "held" if state == "passed" else "waiting"
    seen = "Final collected 32 samples from rollout to train"
    gate: tuple[RuleState, ...] = (
        RuleState(kind="need", rule="/data/train/checkpoint.json", state="held", seen="812 bytes"),
        RuleState(kind="require", rule=r"Final collected \d+ samples (at least 2)", state=held, seen=seen, count=2),
        RuleState(kind="forbid", rule="CUDA out of memory", state="held" if held == "held" else "broken"),
        RuleState(kind="exit", rule="exit code 0", state=held),
        RuleState(kind="silence", rule="at most 600 s", state=held),
    )
    return StageState(
        name=name,
        title=TITLES.get(name, "rollouts, reward, update, weights back into the server: a Ray job"),
        directory=f"stages/{number}-{name}",
        state=state,
        started_at=iso(begin),
        ended_at=iso(end),
        exit_code=0 if state == "passed" else 1,
        services=tuple(
            ServiceState(name=s, title=s, state="stopped", started_at=iso(begin + 5), ready_at=iso(begin + 65))
            for s in services
        ),
        gate=gate,
        cause=CAUSE if state == "failed" else None,
    )


def _events(name: str, begin: int, end: int, state: str, services: tuple[str, ...]) -> list[dict[str, Any]]:
    rows: list[tuple[float, dict[str, Any]]] = [(begin, {"event": "stage", "state": "starting"})]
    for n, service in enumerate(services):
        for at, now in ((begin + 5 + n, "starting"), (begin + 65 + n, "ready"), (end - 5 - n, "stopped")):
            rows.append((at, {"event": "service", "service": service, "state": now}))
    rows.append((begin + 70, {"event": "stage", "state": "running"}))
    span = end - begin - 80
    rows += [(begin + 70 + span * n / len(PHASES), {"event": "phase", "phase": p}) for n, p in enumerate(PHASES)]
    rows.append((end, {"event": "stage", "state": state}))
    return [{"t": iso(at), "stage": name, **row} for at, row in sorted(rows, key=lambda row: row[0])]


def _sample(at: float, chance: random.Random) -> dict[str, Any]:
    stage = next(facts for facts in STAGES if at <= facts[2])
    parts = {"main": {"cpu_pct": 180 + 60 * math.sin(at / 500), "resident_bytes": int(8e9 + 2e9 * math.sin(at / 3000))}}
    parts |= {name: {"cpu_pct": 40 + 9 * chance.random(), "resident_bytes": 3 * 10**9} for name in stage[4]}
    gpus = [
        {"index": n, "utilization": 50 + 45 * math.sin(at / 900 + n), "power_w": 220 + 80 * math.sin(at / 900 + n),
         "memory_bytes": int(5e10 + 2e10 * math.sin(at / 4000)), "total_bytes": 85 * 10**9}
        for n in range(4)
    ]  # fmt: skip
    return {
        "t": iso(at), "stage": stage[0], "phase": "rollout", "cpu_pct": sum(part["cpu_pct"] for part in parts.values()),
        "resident_bytes": sum(int(part["resident_bytes"]) for part in parts.values()),
        "read_bps": 2e7 * chance.random() if at % 3600 < 900 else 0, "write_bps": 3e8 if at % 7200 < 120 else 1e5,
        "received_bps": 4e5 * chance.random(), "sent_bps": 1e5 * chance.random(),
        "disk_free_bytes": int(2e12 - 6e6 * at), "load": 3 + chance.random(), "waits_cpu_pct": 20 * chance.random(),
        "gpus": gpus, "parts": parts,
    }  # fmt: skip


def _metrics(steps: int, chance: random.Random) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"stage": "train-only", "step": n, "loss": 2.5 * math.exp(-3 * n / steps) + 0.4 + chance.gauss(0, 0.05)}
        for n in range(steps)
    ]
    rows += [
        {
            "stage": "smoke",
            "rollout": n,
            "mean_reward": 0.1 + 0.6 * (1 - math.exp(-4 * n / steps)) + chance.gauss(0, 0.03),
        }
        for n in range(steps // 2)
    ]
    return [*rows, *({"stage": "smoke", "eval": name, "mean_reward": 0.5} for name in ("before", "after"))]


def _verl(step: int, chance: random.Random) -> str:
    return (
        f"\x1b[36m(TaskRunner pid=9)\x1b[0m step:{step} - actor/pg_loss:{chance.gauss(0, 0.02):.4f}"
        f" - critic/rewards/mean:{min(1, step / 250 + chance.gauss(0, 0.05)):.3f}"
        f" - timing_s/step:{20 + 4 * chance.random():.2f} - perf/throughput:{900 + chance.gauss(0, 60):.2f}"
    )


def _vllm(chance: random.Random) -> str:
    return f"INFO Engine 000: Avg generation throughput: {abs(chance.gauss(2200, 300)):.1f} tokens/s, Running: 64 reqs"


def _write_log(path: Path, lines: list[str], begin: float, end: float) -> None:
    times, offset = [], 0
    for n, line in enumerate(lines):
        times.append(f"{offset} {int(1000 * (BEGAN.timestamp() + begin + (end - begin) * n / len(lines)))}\n")
        offset += len(line.encode()) + 1
    path.write_text("".join(f"{line}\n" for line in lines))
    path.with_name(f"{path.name}.times").write_text("".join(times))


def _write_evidence(folder: Path) -> None:
    folder.mkdir()
    rows = [f"  {n:7d} (TaskRunner pid=9) step:{n - 20} - actor/pg_loss:0.01" for n in range(321, 421)]
    rows += [f">     421 {FATAL}", *(f"  {n:7d} ray.exceptions.RayTaskError &amp; more" for n in range(422, 460))]
    (folder / "first_fatal.txt").write_text(f"{CAUSE.what}\n{CAUSE.where}\n\n" + "\n".join(rows) + "\n")
    packages = [f"package-{n}=={n}.0" for n in range(40)]
    facts = {"packages": packages, "environment": {"HF_ENDPOINT": "x", "WANDB_API_KEY": "***"}}
    (folder / "facts.json").write_text(json.dumps(facts))
    (folder / "HANG.md").write_text("# Hang\n\nStage smoke was silent for 600 s in phase weight sync.\n")


def _plan() -> dict[str, Any]:
    stages = [
        {"name": name, "argv": ["python", "-m", f"holdem.{name}"], "env": {"OMP_NUM_THREADS": "8"},
         "services": [{"name": service, "argv": ["serve", service], "env": {}} for service in services]}
        for name, _, _, _, services in STAGES
    ]  # fmt: skip
    return {
        "schema": 1, "host": "gpu-07", "user": "mei", "params": {"rollouts": 120, "lr": "1e-6"},
        "origins": {"rollouts": "--set", "lr": "profile full"}, "units": {"rollouts": "rollouts"},
        "env": {"HF_HOME": "/data/hf"}, "secrets": ["WANDB_API_KEY"], "notes": ["resumed without optimizer state"],
        "stages": stages,
    }  # fmt: skip


def plan_of(run_id: str, job: str, **params: Any) -> dict[str, Any]:
    """Return the plan of a run without stages, as its directory holds it."""
    plan = RunPlan(
        run_id=run_id, job=job, target="a800-cn", place="docker", profile="", params=params,
        paths=ProcessPaths(run="/r", job="/j", data="/d", python="/p"), env={}, stages=(),
    )  # fmt: skip
    return dict(plan.as_json())


VOID = ("meta", "link", "br", "input", "line", "rect", "polyline", "circle")


class Page(HTMLParser):
    """What a browser would make of a page, as far as these tests ask."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]
