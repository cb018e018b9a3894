"""The clock of the hang watch: simulated minutes, machines that sleep, clocks that are set."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes import make_line_block
from supervised import Bench as Made
from supervised import python

from rlbox.diagnose.cause import Cause
from rlbox.hang.watch import HangMonitor
from rlbox.job.plan import parse_run_plan
from rlbox.record.journal import Journal
from rlbox.record.state import create_run_state
from rlbox.secrets.handover import SecretGrants
from rlbox.secrets.masks import SecretMasker
from rlbox.supervise.sampler import ResourceSampler
from rlbox.supervise.stage_context import NodeConnectionMonitor, StageContext
from rlbox.system.counters import ActivitySample, ProcessUsage
from rlbox.system.process_table import Process
from rlbox.system.run_processes import RunProcesses, StopSignal

MIB = 1 << 20
PROCESS = ProcessUsage(
    pid=1, start_ticks=1, name="python", state="S", cpu_s=0.0, resident_bytes=MIB, minor_faults=0, major_faults=0
)


class NoProcesses(RunProcesses):
    """A run whose only process is the one that `Machine.probe` tells of."""

    def members(self) -> tuple[Process, ...]:
        return ()


class Machine:
    """A stage that the test lets live: its clock, what its log says, and what its process has read so far."""

    def __init__(self, run_dir: Path, **limits: Any) -> None:
        made = Made(run_dir)
        made.stage("train", python(""), **limits)
        made.write_plan()
        plan = parse_run_plan(json.loads((run_dir / "plan.json").read_text()))
        self.journal = Journal(run_dir, create_run_state(plan, 1), SecretMasker({}), lambda event: None)
        processes = NoProcesses(run_dir / "nobody", StopSignal())
        bench = StageContext(
            plan=plan,
            run_dir=run_dir,
            journal=self.journal,
            processes=processes,
            interrupt=StopSignal(),
            grants=SecretGrants({}, ()),
            nodes=NodeConnectionMonitor(plan.run_id, plan.cluster),
            sampler=ResourceSampler(run_dir, processes.reap_orphans_and_list_pids_by_part, lambda: self.journal.state),
        )
        self.now_s, self.read_bytes = 1000.0, 0
        self.bytes_read_per_log = {"stage": 0}
        self.watch = HangMonitor(
            bench.create_hang_watch_context(plan.stages[0]), clock=lambda: self.now_s, probe=self.probe
        )

    def probe(self, pids: Iterable[int]) -> ActivitySample:
        process = dataclasses.replace(PROCESS, read_bytes=self.read_bytes)
        return ActivitySample(
            time_s=self.now_s, received_bytes=0, sent_bytes=0, loopback_bytes=0, gpus=(), processes=(process,)
        )

    def get_partial_line(self, name: str) -> str:
        return ""

    def says(self, *lines: str) -> None:
        self.watch.feed_if_stage_log("stage", make_line_block(lines))

    def lives(self, seconds: float, *, read_bps: int = 0, each_s: float = 1.0) -> Cause | None:
        for _ in range(int(seconds / each_s)):
            self.now_s += each_s
            self.read_bytes += int(read_bps * each_s)
            if cause := self.watch.find_hang_and_write_evidence(self):
                return cause
        return None


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "run", silence_s=600.0, silence_stated=False)


@pytest.mark.slow
def test_half_an_hour_of_slow_loading(machine: Machine) -> None:
    machine.says("Loading checkpoint shards:   0%|          | 0/4 [00:00<?, ?it/s]")
    assert machine.lives(1800, read_bps=2 * MIB) is None
    assert machine.journal.state.stages[0].phase == "load"
    cause = machine.lives(1810)
    assert cause
    assert cause.what == "stage train hung in phase load: no sign of life for 30 min, and was stopped"


def test_a_machine_that_slept_has_not_hung(machine: Machine) -> None:
    machine.says("[SYNC] Waiting for rollout")
    assert machine.lives(500) is None
    machine.now_s += 86_400.0  # asleep, or the supervisor was stopped
    assert machine.lives(90) is None
    assert machine.lives(20) is not None


def test_a_clock_that_goes_back_changes_nothing(machine: Machine) -> None:
    machine.says("[SYNC] Waiting for rollout")
    assert machine.lives(300) is None
    machine.now_s -= 200.0
    assert machine.lives(290) is None
    assert machine.lives(20) is not None


def test_phases_are_recorded_once_a_second_at_most(machine: Machine) -> None:
    for n in range(200):
        machine.says("[ROLLOUT] x" if n // 5 % 2 else "[SYNC] y")
        machine.lives(0.1, each_s=0.1)
    events = (machine.journal.run_dir / "events.jsonl").read_text().splitlines()
    assert 10 <= len([line for line in events if '"phase"' in line]) <= 21
    assert machine.journal.state.stages[0].phase in ("rollout", "weight-sync")


def test_steps_that_stop_are_a_hang(machine: Machine) -> None:
    for n in range(30):
        machine.says(f"step {n} loss 1.0")
        machine.lives(1)
    cause = machine.lives(60)
    assert cause
    assert cause.what.startswith("stage train made no step for 26 s, usually 1 s apart")
    events = [json.loads(line) for line in (machine.journal.run_dir / "events.jsonl").read_text().splitlines()]
    assert [event["rule"] for event in events if event["event"] == "hang"] == ["steps"]
