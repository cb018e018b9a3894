"""What a run uses is written down while it goes, whatever happens to the disk."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from supervised import Bench, free_port, python, service

from rlbox.record.resources import RESOURCES_FILE, ResourceSample, parse_sample
from rlbox.record.state import RunState, StageState
from rlbox.supervise.sampler import ResourceSampler

SPIN = "import time\nheld = bytearray(50 << 20)\nend = time.process_time() + 0.7\nwhile time.process_time() < end: pass"
IDLE = RunState(run_id="r", job="j", target="t", place="here", profile="", supervisor_pid=1)


def samples(run_dir: Path) -> list[ResourceSample]:
    rows = [parse_sample(json.loads(line)) for line in (run_dir / RESOURCES_FILE).read_text().splitlines()]
    assert all(rows)
    return [row for row in rows if row]


def test_a_run_leaves_what_it_used(bench: Bench) -> None:
    port = free_port()
    bench.stage("train", python(SPIN), services=(service("server", port),))
    bench.stage("rest", python("import time; time.sleep(3)"))
    assert bench.run() == 0
    rows = samples(bench.run_dir)
    assert {"train", "rest"} <= {row.stage for row in rows}
    assert any(row.parts.get("server") and row.parts["server"].resident_bytes > 1 << 20 for row in rows)
    assert any("main" in row.parts for row in rows)
    assert all(row.disk_free_bytes > 0 for row in rows)
    assert (rows[-1].stage, rows[-1].resident_bytes) == ("", 0)  # nothing is left


def test_a_change_of_stage_or_phase_is_sampled_at_once(tmp_path: Path) -> None:
    state = IDLE
    sampler = ResourceSampler(tmp_path, lambda: {"main": {os.getpid()}}, lambda: state)
    stage = StageState(name="train", title="", directory="stages/train", state="running")
    for stages in ((), (stage,), (replace(stage, phase="load"),)):
        state = replace(IDLE, stages=stages)
        sampler.append_sample_if_due_or_changed()
        sampler.append_sample_if_due_or_changed()
    assert [(row.stage, row.phase) for row in samples(tmp_path)] == [("", ""), ("train", ""), ("train", "load")]
