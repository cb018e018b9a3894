"""What the gate itself costs: the rules of the smoke job and twenty more over a log of 256 MiB, in this process."""

from __future__ import annotations

import dataclasses
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.pairs import Sample, Unusable
from benchmarks.place import Place
from rlbox.config.project import Project
from rlbox.gate.gate import GateChecker
from rlbox.job.gate import ForbidRule
from rlbox.job.job import load_job
from rlbox.job.names import STAGE_LOG
from rlbox.job.params import resolve_params
from rlbox.job.plan import ProcessPaths, StagePlan, plan_run
from rlbox.system.tail import BLOCK

SIZE, SMALL = 256 << 20, 8 << 20
SPEED = 200e6  # bytes a second that must be caught up with
MEMORY = 30e6  # bytes that the gate of a big log may cost
PATTERNS = (
    r"Traceback \(most recent call last\)", r"(?i)out of memory", r"NCCL (WARN|error)", r"^\w+Error: ",
    "Watchdog caught collective", "Address already in use", "RayActorError|ActorDiedError", "No space left on device",
    r'HTTP/1.1" 5\d\d', r"loss[ :=]+nan\b", r"grad_norm[ :=]+(?:nan|inf)\b", "BrokenPipeError", "Segmentation fault",
    r"(?i)killed process \d+", "SIGHUP received", r"checkpoint saved to .*global_step_\d+$",
    r"\[(ACTOR|ROLLOUT|SYNC)\] failed", r"accepted_at_1=0\.0+$", r"step 9+ of \d{4,6} finished", "卡住|超时",
)  # fmt: skip
LINES = (
    "\x1b[36m(WorkerDict pid={p})\x1b[0m step:{n} - actor/pg_loss:0.0123 - critic/rewards/mean:0.512 - perf/mfu:0.41",
    'INFO:     127.0.0.1:{p} - "POST /generate HTTP/1.1" 200 OK',
    "2026-11-21 16:00:00,000 INFO worker.py:1234 loading shard {n} of 9999",
    "[2026-11-21 16:00:00] Decode batch. #running-req: {n}, token usage: 0.33, gen throughput (token/s): 104.50",
    "\rFiltering prompts:  25%|██▌       | {n}/4000 [00:02<00:06, 467.86 examples/s]",
)


def against_reading(place: Place) -> Sample:
    """The CPU time of a gate that reads a log, against that of reading it."""
    log = place.kept.get(_log)
    found = [(_timed(lambda: _judge(log)), _timed(lambda: _read(log))) for _ in range(place.rounds)]
    return Sample(ours=tuple(ours for ours, _ in found), anchor=tuple(anchor for _, anchor in found))


def against_the_goal(place: Place) -> Sample:
    """The CPU time of a gate that reads a log, against that of 200 MB/s."""
    log = place.kept.get(_log)
    found = tuple(_timed(lambda: _judge(log)) for _ in range(place.rounds))
    return Sample(ours=found, anchor=(log.stat().st_size / SPEED,) * place.rounds)


def memory(place: Place) -> Sample:
    """What a gate adds to the peak memory while it reads a log in every round, against the 30 MB that it may."""
    log = place.kept.get(_log)
    gate = _gate()
    _feed(gate, log, limit=16)
    before = _peak()
    for _ in range(place.rounds):
        _feed(gate, log)
    return Sample(ours=(float(_peak() - before),), anchor=(MEMORY,), unit="B")


def _log(place: Place) -> Path:
    path, size = place.folder / "stage.log", place.pick(SIZE, SMALL)
    dice = random.Random(26)
    kinds = dice.choices(LINES, (40, 20, 20, 18, 2), k=60000)
    rows = "\n".join(kind.format(p=dice.randrange(9999), n=n) for n, kind in enumerate(kinds)) + "\n"
    with open(path, "wb") as file:
        while file.tell() < size:
            file.write(rows.encode())
        file.truncate(size)
    return path


def _gate() -> GateChecker:
    job = load_job(Project(folder=Path(__file__).parents[1]), "smoke")
    paths = ProcessPaths(run="/r", job="/j", data="/d", python="python")
    plan = plan_run(job, resolve_params(job, "", {}), paths, run_id="b", place="here", target="local")
    more = tuple(ForbidRule(pattern=pattern) for pattern in PATTERNS)
    stages = plan.stages
    stage: StagePlan = dataclasses.replace(
        stages[-1],
        require=tuple(rule.model_copy(update={"log": STAGE_LOG}) for part in stages for rule in part.require),
        forbid=(*(rule for part in stages[:1] + stages[2:] for rule in part.forbid), *more),
        metrics=tuple(metric for part in stages for metric in part.metrics if metric.pattern),
    )
    return GateChecker(stage)


def _judge(log: Path) -> None:
    gate = _gate()
    _feed(gate, log)
    events = gate.events
    if events.forbidden or events.violations or not gate.last_nonblank_line(STAGE_LOG):
        raise Unusable(f"the gate was to read the log to its end: {events.forbidden[:1]} {events.violations[:1]}")


def _feed(gate: GateChecker, log: Path, limit: int = SIZE) -> None:
    with open(log, "rb", buffering=0) as file:
        while (block := file.read(BLOCK)) and file.tell() <= limit * BLOCK:
            gate.feed(STAGE_LOG, block)


def _read(log: Path) -> None:
    with open(log, "rb", buffering=0) as file:
        while file.read(BLOCK):
            pass


def _timed(work: Callable[[], None]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
