"""What a run uses is written down while it goes, whatever happens to the disk."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from supervised import Bench, free_port, python, service, wait_for

from rlbox.record.resources import RESOURCES_FILE, Sample, parse_sample
from rlbox.record.state import RunState
from rlbox.supervise.sampler import Sampler
from rlbox.system.json_files import LineAppender

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


def test_a_full_disk_costs_rows_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / RESOURCES_FILE).symlink_to("/dev/full")
    one = sampler(tmp_path, 0.01)
    one.start()
    one.close()
    (tmp_path / RESOURCES_FILE).unlink()
    two = sampler(tmp_path, 0.01)
    two.start()
    wait_for((tmp_path / RESOURCES_FILE).exists)
    two.close()
    assert samples(tmp_path)


def test_a_removed_directory_ends_nothing(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    one = sampler(run_dir, 0.01)
    one.start()
    wait_for((run_dir / RESOURCES_FILE).exists)
    shutil.rmtree(run_dir)
    run_dir.mkdir()
    wait_for((run_dir / RESOURCES_FILE).exists)
    one.close()
    assert samples(run_dir)[-1].resident_bytes > 0


def test_rows_of_a_directory_that_came_again_begin_at_its_first_line(tmp_path: Path) -> None:
    rows = LineAppender(tmp_path / "run" / RESOURCES_FILE)
    with pytest.raises(FileNotFoundError):
        rows.append(b"{}")
    (tmp_path / "run").mkdir()
    rows.append(b"{}")
    assert (tmp_path / "run" / RESOURCES_FILE).read_bytes() == b"{}\n"


@pytest.mark.parametrize("event", ["stage", "service", "phase"])
def test_an_event_is_sampled_at_once(tmp_path: Path, event: str) -> None:
    one = sampler(tmp_path, 1000.0)
    one.start()
    wait_for((tmp_path / RESOURCES_FILE).exists)
    one.on_event({"event": event, "phase": "load"})
    wait_for(lambda: len(samples(tmp_path)) == 2)
    one.close()
    assert len(samples(tmp_path)) == 3
