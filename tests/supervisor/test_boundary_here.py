"""In place, where programs are the user's own: a data disk names no process, and an attempt starts once."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import Disk
from supervised import wait_for

from rlbox.errors import MachineError
from rlbox.record.disk_lock import acquire_disk_lock, find_lock_owner
from rlbox.record.run_dir import create_lock_owner_from_plan, write_run_plan
from rlbox.record.state import create_run_state, load_run_state, write_run_state
from rlbox.record.supervisor_file import (
    is_host_supervisor_alive,
    load_supervisor_info,
    write_supervisor_info_refusing_second_start,
)
from rlbox.run.launch import stop_or_kill_run
from rlbox.secrets.masks import SecretMasker
from rlbox.system.identity import read_boot_identity
from rlbox.system.process_table import probe_process

COUNTS = "echo x >> {run}/starts; echo two > {run}/made-only"
STAYS = "echo there; sleep 600"


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def facts_of(pid: int) -> dict[str, object]:
    """What a `supervisor.json` would say of a process, in this life of the machine."""
    life, process = read_boot_identity(), probe_process(pid)
    assert process
    ids = {
        "pid": pid,
        "started": process.start_ticks,
        "boot_id": life.boot_id,
        "init": life.init_start_ticks,
        "uid": os.getuid(),
    }
    return {**ids, "host": life.host, "place": "here"}


def test_an_attempt_that_is_started_a_second_time_is_refused(disk: Disk) -> None:
    plan = disk.make(("only", COUNTS))
    disk.begin(plan)
    wait_for(lambda: disk.states() == ["passed"])
    disk.wait_until_free()
    run_dir = disk.run_dirs[-1]
    before = (run_dir / "run.json").read_bytes()
    disk.begin(plan)
    wait_for(lambda: "has started before" in (run_dir / "supervisor.log").read_text())
    disk.wait_until_free()
    said = (run_dir / "supervisor.log").read_text()
    assert f"error: attempt 1 of run {run_dir.name} has started before, and its leftover files would count" in said
    assert f"rlbox run --resume {run_dir.name}" in said
    assert ((run_dir / "starts").read_text(), (run_dir / "run.json").read_bytes()) == ("x\n", before)
    with pytest.raises(MachineError, match="has started before"):
        write_supervisor_info_refusing_second_start(run_dir, place="here", container="", attempt=1, watchdog_pid=0)


def test_lists_on_the_disk_end_no_process(disk: Disk, bystander: subprocess.Popen[bytes]) -> None:
    plan = disk.make(("only", COUNTS))
    run_dir, facts = disk.run_dirs[-1], facts_of(bystander.pid)
    write_run_state(
        run_dir, dataclasses.replace(create_run_state(plan, supervisor_pid=bystander.pid)), SecretMasker({})
    )
    (run_dir / "supervisor.json").write_text(json.dumps(facts))
    lists = {"boot_id": facts["boot_id"], "init": facts["init"], "processes": [[facts["pid"], facts["started"]]]}
    (run_dir / "processes.json").write_text(json.dumps(lists))
    known = load_supervisor_info(run_dir)
    assert known
    assert not is_host_supervisor_alive(run_dir, known)
    hold = acquire_disk_lock(
        disk.data, create_lock_owner_from_plan(plan)
    )  # as a program that locks the file itself would
    try:
        stop_or_kill_run(disk.run_store, run_dir, plan, user="me", via="rlbox stop", grace_s=-19)
    finally:
        hold.close_own_handle()
    assert disk.end_dead_runs().unresolved == {}
    assert (disk.state().state, bystander.poll()) == ("interrupted", None)


def test_a_directory_of_the_same_name_on_another_disk_ends_nothing(disk: Disk, tmp_path: Path) -> None:
    plan = disk.make(("only", STAYS))
    disk.begin(plan)
    wait_for(lambda: disk.states() == ["running"])
    living = set(disk.marked())
    other = Disk(tmp_path / "other")
    forged = other.make(("only", STAYS))
    assert forged.run_id == plan.run_id
    write_run_plan(other.run_dirs[-1], forged)
    write_run_state(other.run_dirs[-1], create_run_state(forged, supervisor_pid=1), SecretMasker({}))
    other.end_dead_runs()
    assert load_run_state(other.run_dirs[-1]).state == "failed"
    assert living <= set(disk.marked())
    assert find_lock_owner(disk.data)


def test_a_plan_that_is_another_runs_is_told(disk: Disk) -> None:
    plan = disk.make(("only", STAYS))
    write_run_plan(disk.run_dirs[-1], dataclasses.replace(plan, run_id="other-1"))
    found = disk.end_dead_runs()
    assert found.unresolved == {plan.run_id: "cannot be settled now: its plan belongs to other-1"}


ORPHANS = """
import os, pathlib, time
from rlbox.system.run_processes import StopSignal
from rlbox.system.process_table import probe_processes
from rlbox.system.libc import set_child_subreaper
from rlbox.system.run_processes import RunProcesses
from rlbox.values import Command
set_child_subreaper()
processes = RunProcesses(pathlib.Path("/d/runs/r"), StopSignal())
forks = "for i in $(seq 60); do (true &); done; exit 3"
child = processes.start(Command(argv=("sh", "-c", forks)), 2, stage="s", part="main")
def zombies():
    return sum(p.is_zombie and p.parent_pid == os.getpid() for p in probe_processes().values())
while zombies() < 61:
    time.sleep(0.05)
looks = []
for _ in range(2):
    processes.reap_orphans_and_list_pids_by_part()
    looks.append(zombies())
print(looks, child.poll())
"""


def test_orphans_that_ended_are_collected_while_the_run_goes_on() -> None:
    """Process 1 of a container has no init above it; what the run itself waits for is left to it."""
    done = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[61, 1] 3\n", "")
