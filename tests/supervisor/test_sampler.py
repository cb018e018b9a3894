"""What a run uses is written down while it goes, whatever happens to the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from supervised import Bench, free_port, python, service, wait_for

from rlbox.record.resources import RESOURCES_FILE, Sample, parse_sample
from rlbox.record.state import RunState
from rlbox.supervise.sampler import Sampler

SPIN = "import time\nheld = bytearray(50 << 20)\nend = time.process_time() + 0.7\nwhile time.process_time() < end: pass"
IDLE = RunState(run_id="r", job="j", target="t", place="here", profile="", supervisor_pid=1)


def samples(run_dir: Path) -> list[Sample]:
    rows = [parse_sample(json.loads(line)) for line in (run_dir / RESOURCES_FILE).read_text().splitlines()]
    assert all(rows)
    return [row for row in rows if row]


def sampler(run_dir: Path, pause_s: float) -> Sampler:
    return Sampler(run_dir, lambda: {"main": {os.getpid()}}, lambda: IDLE, pause_s=pause_s)


def test_a_run_leaves_what_it_used(bench: Bench) -> None:
    port = free_port()
    bench.stage("train", python(SPIN), services=(service("server", port),))
    bench.stage("rest", python("import time; time.sleep(1)"))
    assert bench.run() == 0
    rows = samples(bench.run_dir)
    assert {"train", "rest"} <= {row.stage for row in rows}
    assert any(row.parts.get("server") and row.parts["server"].resident_bytes > 1 << 20 for row in rows)
    assert any("main" in row.parts for row in rows)
    assert all(row.disk_free_bytes > 0 for row in rows)
    assert (rows[-1].stage, rows[-1].resident_bytes) == ("", 0)  # nothing is left


@pytest.mark.parametrize("event", ["stage", "service", "phase"])
def test_an_event_is_sampled_at_once(tmp_path: Path, event: str) -> None:
    one = sampler(tmp_path, 1000.0)
    one.start()
    wait_for((tmp_path / RESOURCES_FILE).exists)
    one.sample_soon_on_change({"event": event, "phase": "load"})
    wait_for(lambda: len(samples(tmp_path)) == 2)
    one.close()
    assert len(samples(tmp_path)) == 3
