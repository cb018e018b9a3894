"""Goal 26 and what watching a log costs: the real supervisor over stages in place that do nothing but write."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import psutil

from benchmarks.pairs import Sample, Unusable
from benchmarks.place import Place
from rlbox.job.gate import ForbidRule
from rlbox.job.plan import ProcessPaths, RunPlan, StagePlan

SAMPLES, FEW = 40, 2
POLL_S = 0.1
LINE = "(TrainActor pid=4242) step:{n} - actor/pg_loss:0.0123 critic/rewards/mean:0.512 perf/throughput:10234.5"
SECONDS, MOMENT = 8.0, 1.0

WRITER = f"""
import os, random, sys, time
rate, seconds, size = map(float, sys.argv[1:4])
block = b"".join({LINE!r}.replace("{{n}}", str(n)).encode() + b"\\n" for n in range(5000))
line, begun, sent = block.split(b"\\n")[0] + b"\\n", time.time(), 0
def write(data):
    data = memoryview(data)
    while data: data = data[os.write(1, data):]
def go_on(until):
    global sent
    while time.time() < until:
        while sent < rate * (time.time() - begun): write(line); sent += len(line)
        time.sleep(0.001)
while size > 0: write(block); size -= len(block)
if seconds: go_on(begun + seconds)
else:
    go_on(begun + random.uniform(0.05, 0.25))
    write(b"ValueError: written at %.6f\\n" % time.time())
    go_on(time.time() + 0.25)
"""


def line_to_event(rate: float) -> Callable[[Place], Sample]:
    """Return the measurement of a failure line's way into `events.jsonl`, against a follower that polls at 100 ms.

    A round is the slowest of 40 lines; each comes at a random moment of a stage that writes `rate` bytes a second.
    """

    def measure(place: Place) -> Sample:
        found = [_slowest(place, f"lines-{number}", rate) for number in range(place.rounds)]
        return Sample(ours=tuple(ours for ours, _ in found), anchor=tuple(anchor for _, anchor in found))

    return measure


def share_of_a_core(place: Place) -> Sample:
    """The supervisor's CPU time while the stage writes 1 MB/s, against one core's time, and that of `tee` beside."""
    found, least, seconds = [], list[float](), place.pick(SECONDS, MOMENT)
    for number in range(place.rounds):
        with Supervised(place, f"rate-{number}", [_writer("s", 1e6, seconds + 2, 0)]) as run:
            time.sleep(1.0)
            begun, used = time.monotonic(), run.cpu_s()
            time.sleep(seconds)
            found.append((run.cpu_s() - used, time.monotonic() - begun))
        least.append(_cpu_s_of_tee(place.folder / "tee.log", seconds))
    return Sample(
        ours=tuple(used for used, _ in found), anchor=tuple(passed for _, passed in found), limit=tuple(least)
    )


def _cpu_s_of_tee(log: Path, seconds: float) -> float:
    """CPU time of what only brings 1 MB/s into a file."""
    argv = (sys.executable, "-I", "-S", "-c", WRITER, str(1e6), str(seconds), "0")
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as writer, log.open("wb") as sink:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(["tee"], stdin=writer.stdout, stdout=sink, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _writer(name: str, rate: float, seconds: float, size: float) -> StagePlan:
    never = ForbidRule(pattern=r"loss:\s*(nan|inf)\b|CUDA out of memory")
    return bare_stage(name, ("-c", WRITER, str(rate), str(seconds), str(size)), forbid=(never,))


def bare_stage(
    name: str, words: tuple[str, ...], *, forbid: tuple[ForbidRule, ...] = (), silence_s: float = 600.0
) -> StagePlan:
    """Return a stage that runs Python with `words`, and needs nothing."""
    return StagePlan(
        name=name,
        title=name,
        directory=f"stages/{name}",
        argv=(sys.executable, "-I", "-S", *words),
        env={},
        services=(),
        needs=(),
        ray=None,
        require=(),
        forbid=forbid,
        files=(),
        total_s=600.0,
        silence_s=silence_s,
    )


def bare_run(run_id: str, folder: Path, data: Path, stages: tuple[StagePlan, ...]) -> RunPlan:
    """Return the plan of a run in place whose folder is `folder`."""
    return RunPlan(
        run_id=run_id,
        job="bench",
        target="local",
        place="here",
        profile="",
        params={},
        paths=ProcessPaths(run=str(folder), job=str(folder), data=str(data), python=sys.executable),
        env={},
        stages=stages,
    )


class Supervised:
    """A run directory and the supervisor over it; it is ended when the block ends."""

    def __init__(self, place: Place, name: str, stages: list[StagePlan]) -> None:
        self.folder = place.folder / name
        self.folder.mkdir()
        plan = bare_run(f"bench-{place.folder.name}-{name}", self.folder, self.folder, tuple(stages))
        (self.folder / "plan.json").write_text(json.dumps(plan.as_json()))
        argv = [sys.executable, "-m", "rlbox.supervise", str(self.folder)]
        self._process = subprocess.Popen(argv, env=place.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self._facts = psutil.Process(self._process.pid)

    def __enter__(self) -> Supervised:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        if self._process.stderr:
            self._process.stderr.close()

    def finish(self, ends: tuple[int, ...] = (0,)) -> None:
        """Wait for the end; `Unusable` when its exit code is none of `ends`."""
        while self._process.poll() is None:
            time.sleep(0.02)
        if self._process.returncode not in ends:
            told = self._process.stderr.read().decode("utf-8", "replace") if self._process.stderr else ""
            raise Unusable(f"the run ended with exit code {self._process.returncode}:\n{told[-2000:]}")

    @property
    def running(self) -> bool:
        """Whether the supervisor has not ended yet."""
        return self._process.poll() is None

    def cpu_s(self) -> float:
        """CPU time of the supervisor so far, without that of the stage."""
        times = self._facts.cpu_times()
        return float(times.user + times.system)

    def log(self, stage: str) -> Path:
        """The log of a stage."""
        return self.folder / "stages" / stage / "stage.log"

    def events(self) -> list[dict[str, str]]:
        """What the run recorded."""
        return [json.loads(line) for line in (self.folder / "events.jsonl").read_text().splitlines()]


def _slowest(place: Place, name: str, rate: float) -> tuple[float, float]:
    stages = [_writer(f"s{number}", rate, 0, 0) for number in range(place.pick(SAMPLES, FEW))]
    with Supervised(place, name, stages) as run:
        polled: list[float] = []
        logs = [run.log(stage.name) for stage in stages]
        follower = threading.Thread(target=_poll, args=(logs, polled, run), daemon=True)
        follower.start()
        run.finish()
        follower.join()
        fatal = [event for event in run.events() if event["event"] == "fatal"]
        # an event's time is in whole milliseconds, rounded down
        ours = [unix(event["t"]) + 1e-3 - float(event["line"].split()[-1]) for event in fatal]
    if len(ours) != len(stages):
        raise Unusable(f"{len(ours)} of {len(stages)} failure lines became events")
    return max(ours), max(polled)


def _poll(logs: list[Path], found: list[float], run: Supervised) -> None:
    """Follow one log after the other as a loop over `sleep` does; note how late each failure line is seen."""
    for log in logs:
        text = ""
        while "ValueError" not in text:
            time.sleep(POLL_S)
            running, text = run.running, log.read_text() if log.exists() else ""
            if not running and "ValueError" not in text:
                return
        written = text[text.index("ValueError") :].split("\n")[0].split()[-1]
        found.append(time.time() - float(written))


def unix(text: str) -> float:
    """Return a recorded time as seconds since 1970."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
