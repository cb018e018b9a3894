"""Runs in place survive whatever watches over them, and what is recorded of their end is true."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import socket
import threading
from pathlib import Path

import pytest
from launched import Disk
from supervised import wait_for

from rlbox.errors import LockHeld, MachineError
from rlbox.record.disk_lock import LOCK_FILE, LockOwner, acquire_disk_lock, find_lock_owner
from rlbox.record.run_dir import load_plan_file, write_run_plan
from rlbox.record.state import RUN_FILE, archive_rerun_stages_and_build_state, load_run_state_or_none
from rlbox.record.supervisor_file import SUPERVISOR_FILE
from rlbox.run.launch import stop_or_kill_run
from rlbox.system.process_table import probe_process

MAKES = "echo one > {run}/made-first"
HANGS = "echo there; sleep 600"
# a stage with a child that has no mark of the run in its environment and a session of its own
HIDES = "env -i setsid sh -c 'echo $$ > {run}/hidden; exec sleep 601' & sleep 0.2; echo there; sleep 600"


def going(disk: Disk, second: str = HANGS) -> Path:
    """Start a run that is in its second stage; return its directory."""
    disk.begin(disk.make(("first", MAKES), ("second", second)))
    wait_for(lambda: disk.states() == ["passed", "running"])
    return disk.run_dirs[-1]


def gone(pid: int) -> bool:
    process = probe_process(pid)
    return process is None or process.is_zombie


def test_killed_supervisor_is_recorded_at_once_and_nothing_is_left(disk: Disk) -> None:
    run_dir = going(disk, HIDES)
    wait_for(lambda: (run_dir / "hidden").exists() and (run_dir / "hidden").read_text().strip())
    hidden = int((run_dir / "hidden").read_text())
    os.kill(disk.supervisor().pid, signal.SIGKILL)
    disk.wait_until_free()
    assert disk.states() == ["passed", "failed"]
    assert disk.state().exit_code == 1
    assert disk.cause().what == "the supervisor was killed (signal 9 (SIGKILL)) while stage second was running"
    assert disk.cause().next_step == f"rlbox run --resume {run_dir.name}"
    assert disk.marked() == []
    wait_for(lambda: gone(hidden))


def test_killed_warden_changes_nothing(disk: Disk) -> None:
    run_dir = going(disk, "sleep 1; echo two > {run}/made-second")
    os.kill(disk.supervisor().warden, signal.SIGKILL)
    holder = find_lock_owner(disk.data)
    assert holder
    assert (holder.run, holder.user) == (run_dir.name, "tester")
    disk.wait_until_free()
    assert disk.state().state == "passed"
    assert 0.9 < disk.state().stages[1].seconds < 60  # by a clock that nobody sets


def test_both_killed(disk: Disk) -> None:
    """The next command ends what is left and nothing else, then it says the truth."""
    going(disk)
    facts = disk.supervisor()
    for pid in (facts.warden, facts.pid):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: find_lock_owner(disk.data) is None)
    assert disk.states() == ["passed", "running"]
    assert disk.end_dead_runs().unresolved == {}
    assert disk.states() == ["passed", "failed"]
    assert "ended without a record" in disk.cause().what
    assert disk.marked() == []


def test_a_held_disk_two_stops_at_once_and_one_after_the_end(disk: Disk) -> None:
    run_dir = going(disk)
    plan = load_plan_file(run_dir)
    with pytest.raises(LockHeld) as refused:
        acquire_disk_lock(disk.data, LockOwner(), 0.1)
    who = f"started by tester (uid {os.getuid()}) on {socket.gethostname()}, since"
    assert refused.value.what.startswith(f"run {run_dir.name} has the data disk: job job, {who}")
    assert refused.value.next_step == f"rlbox attach {run_dir.name}, or end it with: rlbox stop {run_dir.name}"

    def stop(user: str) -> None:
        stop_or_kill_run(disk.run_store, run_dir, plan, user=user, via="rlbox stop")

    stops = [threading.Thread(target=stop, args=(user,)) for user in ("alice", "alice")]
    for thread in stops:
        thread.start()
    for thread in stops:
        thread.join()
    assert disk.states() == ["passed", "interrupted"]
    assert disk.cause().what == "interrupted by rlbox stop (alice)"
    before = (run_dir / RUN_FILE).read_bytes()
    stop("bob")
    assert disk.end_dead_runs().lock_owner is None
    assert (run_dir / RUN_FILE).read_bytes() == before
    acquire_disk_lock(disk.data, LockOwner()).close_own_handle()  # what the file says is stale and blocks nobody


def test_a_supervisor_that_does_not_stop_is_killed(disk: Disk) -> None:
    run_dir = going(disk)
    os.kill(disk.supervisor().pid, signal.SIGSTOP)
    stop_or_kill_run(disk.run_store, run_dir, load_plan_file(run_dir), user="alice", via="rlbox stop", grace_s=0.2)
    disk.wait_until_free()
    assert disk.state().state == "interrupted"
    assert disk.state().exit_code == 130
    assert disk.cause().what.startswith("interrupted by rlbox stop (alice); then the supervisor was killed")
    assert disk.marked() == []


def test_a_run_directory_that_is_removed(disk: Disk) -> None:
    run_dir = going(disk)
    shutil.rmtree(run_dir.rename(disk.data / "removed"))  # at once: the run writes while a tree is being removed
    disk.wait_until_free()
    assert disk.states() == ["passed", "failed"]
    assert disk.cause().what.startswith("the run directory was removed while the run went on")
    assert disk.state().exit_code == MachineError.exit_code
    assert disk.marked() == []


def test_a_lock_file_of_another_user_or_with_rubbish_in_it(disk: Disk) -> None:
    (disk.data / LOCK_FILE).write_bytes(b"\xff{")
    hold = acquire_disk_lock(disk.data, LockOwner(user="alice"))
    assert (disk.data / LOCK_FILE).stat().st_mode & 0o777 == 0o666
    os.pwrite(hold.handle, b"\xff", 0)
    holder = find_lock_owner(disk.data)
    assert holder
    assert holder.what == "no word about it"
    hold.close_own_handle()
    assert find_lock_owner(disk.data) is None


@pytest.fixture(scope="module")
def corpse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that was killed in its second stage, with its warden."""
    disk = Disk(tmp_path_factory.mktemp("dead") / "data")
    run_dir = going(disk)
    wait_for(
        lambda: '"stage": "second", "event": "stage", "state": "running"' in (run_dir / "events.jsonl").read_text()
    )
    log = run_dir / "stages/2-second/stage.log"
    wait_for(lambda: log.is_file() and log.read_text() == "there\n")
    supervisor = disk.supervisor()
    for pid in (supervisor.warden, supervisor.pid):
        os.kill(pid, signal.SIGKILL)
    disk.wait_until_free()
    disk.close()
    return run_dir


def dead(disk: Disk, corpse: Path, **facts: object) -> Path:
    """Lay the dead run onto a disk, with changed facts about its supervisor."""
    run_dir = disk.data / "runs" / corpse.name
    shutil.copytree(corpse, run_dir)
    disk.run_dirs.append(run_dir)
    known = json.loads((run_dir / SUPERVISOR_FILE).read_text())
    (run_dir / SUPERVISOR_FILE).write_text(json.dumps(known | facts))
    return run_dir


def test_a_machine_that_was_restarted(disk: Disk, corpse: Path) -> None:
    dead(disk, corpse, boot_id="an earlier one")
    disk.end_dead_runs()
    assert disk.cause().what == "the machine was restarted while stage second was running"
    assert (disk.state().state, disk.state().exit_code) == ("failed", 1)


def test_a_run_of_another_machine(disk: Disk, corpse: Path) -> None:
    run_dir = dead(disk, corpse, boot_id="another one")
    plan = load_plan_file(run_dir)
    write_run_plan(run_dir, dataclasses.replace(plan, host="elsewhere"))
    disk.end_dead_runs()
    assert disk.cause().what.startswith("the supervisor at host elsewhere is gone while stage second was running")


def test_a_torn_state_has_failed(disk: Disk, corpse: Path) -> None:
    run_dir = dead(disk, corpse, init=1)
    text = (run_dir / RUN_FILE).read_bytes()
    (run_dir / RUN_FILE).write_bytes(text[: len(text) // 2])
    (run_dir / f".{RUN_FILE}.123").write_bytes(text[:10])
    with open(run_dir / "events.jsonl", "ab") as events:
        events.write(b'{"t": "2026-01-01T00:00:00+00:00", "stage": "sec')
    disk.end_dead_runs()
    assert disk.state().state == "failed"
    assert disk.cause().what.startswith("the container that rlbox runs in was restarted")
    assert not list(run_dir.glob(f".{RUN_FILE}.*"))
    assert json.loads((run_dir / "events.jsonl").read_text().splitlines()[-1])["settled"] is True


def test_a_run_that_never_started_stays(disk: Disk) -> None:
    disk.make(("first", MAKES))
    assert disk.end_dead_runs().unresolved == {}
    assert load_run_state_or_none(disk.run_dirs[-1]) is None


def test_an_attempt_moves_what_the_one_before_left(disk: Disk, corpse: Path) -> None:
    run_dir = dead(disk, corpse)
    disk.end_dead_runs()
    plan = load_plan_file(run_dir)
    first, second = plan.stages
    proof = second.files[0].model_copy(update={"path": str(run_dir / "proof")})
    second = dataclasses.replace(second, argv=("sh", "-c", f"echo two > {run_dir}/proof"), files=(proof,))
    paths = dataclasses.replace(plan.paths, run=str(run_dir), data=str(disk.data))
    again = dataclasses.replace(plan, attempt=2, stages=(first, second), paths=paths)
    write_run_plan(run_dir, again)
    (run_dir / SUPERVISOR_FILE).unlink()  # as resuming does
    os.mkdir(run_dir / "stages/2-second/attempt-1")  # a kill in the middle of moving
    disk.begin(again)
    wait_for(lambda: disk.state().attempt == 2)
    disk.wait_until_free()
    state = disk.state()
    assert [(stage.state, stage.attempt) for stage in state.stages] == [("passed", 1), ("passed", 2)]
    assert (run_dir / "stages/2-second/attempt-1/stage.log").read_text() == "there\n"
    assert json.loads((run_dir / "run.attempt-1.json").read_text())["state"] == "failed"
    assert (
        archive_rerun_stages_and_build_state(run_dir, plan, 1).stages[0].state == "waiting"
    )  # a plan of attempt 1 begins anew


def test_ends_between_stages_and_after_the_last(disk: Disk, corpse: Path) -> None:
    run_dir = dead(disk, corpse)
    data = json.loads((run_dir / RUN_FILE).read_text())
    data["stages"][1]["state"] = "waiting"
    (run_dir / RUN_FILE).write_text(json.dumps(data))
    disk.end_dead_runs()
    assert disk.states() == ["passed", "not started"]
    assert disk.cause().what.endswith("before stage second began")
    data["stages"][1]["state"] = "passed"
    (run_dir / RUN_FILE).write_text(json.dumps(data))
    disk.end_dead_runs()
    assert disk.state().state == "passed"
