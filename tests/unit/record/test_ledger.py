"""The ledger of a data disk, over carriers of a place that it knows nothing of; and the list of places."""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rlbox.errors import EngineError, SpecError
from rlbox.job.plan import ProcessPaths, RunPlan
from rlbox.record.disk_lock import LockOwner
from rlbox.record.host_record import ContainerRef, HostRunRecord, HostRunRecordStore
from rlbox.record.reconcile import RuntimeStatus
from rlbox.record.run_dir import write_run_plan
from rlbox.record.run_store import RunStore
from rlbox.record.state import StageState, create_run_state, find_run_cause, load_run_state, write_run_state
from rlbox.record.supervisor_exit import SupervisorExit
from rlbox.run.backend import open_container_runtime
from rlbox.secrets.masks import SecretMasker

pytestmark = pytest.mark.allow("processes")

ME = LockOwner(what="a test")
NOTE = ContainerRef(run="r-1", name="job-7", engine_address="there", started_at="t0", backend="there")
PLAN = RunPlan(
    run_id="r-1",
    job="r",
    target="local",
    place="there",
    profile="",
    params={},
    paths=ProcessPaths(run="/r", job="/r/job", data="/", python="python"),
    env={},
    stages=(),
    container="job-7",
)


@dataclass
class Fake:
    """A carrier in one state; `asked` is what was asked of it."""

    state: RuntimeStatus
    last: SupervisorExit | None = None
    asked: list[str] = field(default_factory=list)

    def status(self) -> RuntimeStatus:
        return self.state

    def assume_ended_and_find_exit_info_unless_removed(self) -> SupervisorExit | None:
        return self.last

    def stop_unless_gone_requiring_same_user(self, grace_s: int) -> None:
        self.asked.append(f"stop {grace_s}")

    def remove_unless_gone_requiring_same_user(self) -> None:
        self.asked.append("remove")


def ledger_with(data: Path, fake: Fake, *, begun: bool = True) -> RunStore:
    run_store = RunStore(data_dir=data, open_runtime=lambda note: fake)
    run_dir = run_store.create_run_dir(PLAN, None, {"told.txt": "x"})
    if begun:
        write_run_state(run_dir, create_run_state(PLAN, supervisor_pid=1), SecretMasker({}))
    run_store.save_container_ref_and_plan(NOTE, PLAN)
    return run_store


def test_record_of_a_container_keeps_its_keys_on_disk(tmp_path: Path) -> None:
    records = HostRunRecordStore(tmp_path)
    records.write("r-1", HostRunRecord(container_ref=NOTE))
    (file,) = records.folder.glob("*.json")
    note = {"run": "r-1", "name": "job-7", "engine": "there", "started": "t0", "place": "there"}
    assert json.loads(file.read_text())["note"] == note
    assert records.read_or_empty("r-1").container_ref == NOTE


def test_a_living_carrier_is_left_alone(tmp_path: Path) -> None:
    fake = Fake("living")
    run_store = ledger_with(tmp_path, fake)
    found = run_store.clean_up_dead_runs_unless_run_holds_disk(ME)
    assert (found.alive, found.unresolved, fake.asked) == (("r-1",), {}, [])
    assert run_store.load_container_refs_by_run() == {"r-1": NOTE}
    assert run_store.is_running_or_starting("r-1")
    assert not run_store.is_running_or_starting("r-2")


def test_one_that_never_started_is_cleared_away_and_its_run_has_not_begun(tmp_path: Path) -> None:
    fake = Fake("made")
    run_store = ledger_with(tmp_path, fake, begun=False)
    assert run_store.clean_up_dead_runs_unless_run_holds_disk(ME).alive == ()
    assert (fake.asked, run_store.load_container_refs_by_run()) == (["remove"], {})
    assert {path.name for path in run_store.find_run_dir_or_latest("r").iterdir()} == {
        "stages",
        "plan.json",
        "told.txt",
        ".reserve",
    }


def test_a_run_without_its_directory_leaves_no_carrier(tmp_path: Path) -> None:
    fake = Fake("ended", SupervisorExit(kind="ended", container_name="job-7"))
    run_store = RunStore(data_dir=tmp_path, open_runtime=lambda note: fake)
    run_store.save_container_ref_and_plan(NOTE, PLAN)
    assert run_store.clean_up_dead_runs_unless_run_holds_disk(ME).unresolved == {}
    assert (fake.asked, run_store.load_container_refs_by_run(), run_store.list_run_dirs_newest_first()) == (
        ["remove"],
        {},
        [],
    )


@pytest.mark.parametrize("state", ["gone", "ended"])
def test_one_that_somebody_removed(tmp_path: Path, state: RuntimeStatus) -> None:
    run_store = ledger_with(tmp_path, Fake(state))
    run_store.clean_up_dead_runs_unless_run_holds_disk(ME)
    ended = load_run_state(run_store.find_run_dir_or_latest("r-1"))
    assert ended.state == "passed"  # no stage was left to do


def test_one_that_does_not_answer_is_told(tmp_path: Path) -> None:
    def silent(note: ContainerRef) -> Fake:
        raise EngineError(f"{note.engine_address} does not answer")

    ledger_with(tmp_path, Fake("living"))
    run_store = RunStore(data_dir=tmp_path, open_runtime=silent)
    assert run_store.clean_up_dead_runs_unless_run_holds_disk(ME).unresolved == {
        "r-1": "cannot be settled now: there does not answer"
    }
    assert find_run_cause(load_run_state(run_store.find_run_dir_or_latest("r-1"))) is None


def test_a_place_of_another_rlbox() -> None:
    with pytest.raises(SpecError, match="unknown place 'there'") as refused:
        open_container_runtime(NOTE)
    assert refused.value.next_step == "use the newer rlbox that started it"


def test_what_the_host_knows_is_not_read_from_the_disk(tmp_path: Path) -> None:
    """A plan with weaker gates and a record that says passed, written by a program of a later run."""
    last = SupervisorExit(kind="ended", exit_code=1, container_name="job-7", stderr_tail="rlbox: run running")
    run_store = ledger_with(tmp_path, Fake("ended", last))
    run_dir = run_store.find_run_dir_or_latest("r-1")
    write_run_state(
        run_dir, dataclasses.replace(create_run_state(PLAN, supervisor_pid=1), state="failed"), SecretMasker({})
    )
    assert run_store.clean_up_dead_runs_unless_run_holds_disk(ME).unresolved == {}
    write_run_plan(run_dir, dataclasses.replace(PLAN, digest="forged"))
    assert run_store.load_plan_preferring_host_record(run_dir) == PLAN
    write_run_state(run_dir, dataclasses.replace(load_run_state(run_dir), state="passed"), SecretMasker({}))
    state = run_store.load_state_marked_failed_if_tampered(run_dir)
    assert state
    assert (state.state, state.cause and state.cause.kind) == ("failed", "contradiction")
    shutil.rmtree(run_dir)
    run_store.save_container_ref_and_plan(NOTE)
    run_store.clean_up_dead_runs_unless_run_holds_disk(ME)
    assert list(HostRunRecordStore(tmp_path).folder.iterdir()) == []


def test_a_forged_boot_hides_no_word_of_the_carrier(tmp_path: Path) -> None:
    last = SupervisorExit(kind="killed", exit_code=137, container_name="job-7", stderr_tail="rlbox: run running")
    run_store = ledger_with(tmp_path, Fake("ended", last))
    run_dir, stage = (
        run_store.find_run_dir_or_latest("r-1"),
        StageState(name="a", title="a", directory="stages/1-a", state="passed"),
    )
    state = dataclasses.replace(create_run_state(PLAN, supervisor_pid=1), state="passed", stages=(stage,))
    write_run_state(run_dir, state, SecretMasker({}))
    facts = {"pid": 1, "started": 1, "boot_id": "another", "init": 1, "uid": 0, "host": "", "place": "there"}
    (run_dir / "supervisor.json").write_text(json.dumps(facts))
    run_store.clean_up_dead_runs_unless_run_holds_disk(ME)
    cause = find_run_cause(load_run_state(run_dir))
    assert cause
    assert (load_run_state(run_dir).state, cause.kind) == ("failed", "lost")
    assert "before it was seen that stage a passed" in cause.what


FORGED = ("../../x", "/etc/passwd", "", "..", "r-2", "r-1\n", "x" * 300)


@pytest.mark.parametrize("name", FORGED)
def test_a_plan_that_names_another_run_leads_to_nothing(tmp_path: Path, name: str) -> None:
    fake = Fake("living")
    run_store = RunStore(data_dir=tmp_path, open_runtime=lambda note: fake)
    run_dir = run_store.create_run_dir(PLAN, None, {})
    (run_dir / "supervisor.json").write_text("{}")
    write_run_plan(run_dir, dataclasses.replace(PLAN, run_id=name))
    with pytest.raises(SpecError, match="its plan belongs to"):
        run_store.load_plan_preferring_host_record(run_dir)
    assert run_store.find_container_runtime("r-1") is None
    run_store.clean_up_dead_runs_unless_run_holds_disk(ME)
    assert fake.asked == []


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "", ".."])
def test_what_is_no_name_of_a_run_has_no_record(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match="is not a valid run name"):
        HostRunRecordStore(tmp_path).read_or_empty(name)


@pytest.mark.parametrize("name", ["a\nfake  passed", "a\rb", "\x1b]0;x\x07", "a b", "-x", ".r", "é"])
def test_a_folder_with_another_name_is_no_run(tmp_path: Path, name: str) -> None:
    run_store = RunStore(data_dir=tmp_path, open_runtime=lambda note: Fake("gone"))
    shutil.copytree(run_store.create_run_dir(PLAN, None, {}), tmp_path / "runs" / name)
    assert [run.name for run in run_store.list_run_dirs_newest_first()] == ["r-1"]
