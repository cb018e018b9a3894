"""What this host knows of the runs that it started, where no program of a run can write: a file a run, by data disk.

A data disk is seen by the programs of its runs, so what lies there is for people and for reports. What rlbox does on
this host follows from these files alone: which container carries a run, by its engine, and how the run ended. A record
in the run directory that says more than the supervisor said on its container's output, which only the engine keeps, or
than this host kept, is not believed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rlbox.amounts import utc_now
from rlbox.diagnose.cause import Cause, describe_exit
from rlbox.errors import RlboxError, SpecError
from rlbox.i18n import _
from rlbox.job.plan import RunPlan, parse_run_plan
from rlbox.record.state import RunState, RunStatus, parse_json_as, replace_stage
from rlbox.record.supervisor_exit import SupervisorExit, make_lost_run_cause
from rlbox.system.files import state_path, write_atomic
from rlbox.system.json_files import read_json_object_or_empty

ATTEMPT_BEGUN_LINE = "rlbox: run running"
"""What a supervisor says first of all, once per start that was not refused."""

_SEEN = ("ended", "killed", "memory", "engine", "again")


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    attempt: int
    state: RunStatus
    passed: tuple[str, ...] = ()


def format_stage_passed_line(stage: str) -> str:
    return f"rlbox: {stage}: passed"


def extract_status_and_passed_stages(state: RunState) -> RunOutcome:
    passed = tuple(stage.name for stage in state.stages if stage.state == "passed")
    return RunOutcome(attempt=state.attempt, state=state.state, passed=passed)


def mark_failed_if_container_contradicts(
    state: RunState, exit_info: SupervisorExit, earlier_passed_stages: Iterable[str]
) -> RunState:
    """Return the state, ended as failed where it says more than the supervisor said and the engine saw.

    `earlier_passed_stages` had passed before this attempt and did not run again.
    """
    container = _("container {name}").format(name=exit_info.container_name)
    if not exit_info.container_name or exit_info.kind not in _SEEN:
        return state
    again = exit_info.kind == "again"
    if exit_info.exit_code == 0 and not again:
        told = _("it says {state}, {container} ended with exit code 0")
        told = told.format(state=_(state.state), container=container)
        return state if state.state == "passed" else _contradicted(state, told, "")
    lines = exit_info.stderr_tail.splitlines()
    if again and lines.count(ATTEMPT_BEGUN_LINE) != 1:  # a start that was refused has said nothing of a stage
        lines, earlier_passed_stages = [], ()
    known = {*lines, *map(format_stage_passed_line, earlier_passed_stages)}
    unsaid = next(
        (s.name for s in state.stages if s.state == "passed" and format_stage_passed_line(s.name) not in known), None
    )
    if unsaid is None:
        return state
    if exit_info.kind in ("engine", "killed", "memory"):  # the record may be right, and its end came before the word
        during = _("before it was seen that stage {name} passed")
        cause = make_lost_run_cause(exit_info, during.format(name=unsaid), state.run_id)
        return _failed(state, cause, unsaid)
    told = _("it says that stage {name} passed, {container} was started a second time")
    told = told if again else _("it says that stage {name} passed, {container} ended with {ended}")
    ended = describe_exit(exit_info.exit_code)
    return _contradicted(state, told.format(name=unsaid, container=container, ended=ended), unsaid)


def mark_failed_if_outcome_differs(state: RunState, host_recorded_outcome: RunOutcome | None) -> RunState:
    kept = host_recorded_outcome
    if kept is None or state.attempt > kept.attempt:
        return state
    unknown = next((s.name for s in state.stages if s.state == "passed" and s.name not in kept.passed), "")
    if state.state == kept.state and not unknown and state.attempt == kept.attempt:
        return state
    now = _("{state}, {stage} passed") if unknown else _(state.state)
    now = now.format(state=_(state.state), stage=unknown)
    told = _("it says {now} of attempt {attempt}, attempt {kept_attempt} had {kept}")
    told = told.format(now=now, attempt=state.attempt, kept_attempt=kept.attempt, kept=_(kept.state))
    return _contradicted(state, told, unknown)


def _contradicted(state: RunState, what: str, stage: str) -> RunState:
    step = _(
        "see what its programs write into the run directory; rlbox run --resume {run_id} takes it up again"
    ).format(run_id=state.run_id)
    what = _("the record is not the supervisor's: {what}").format(what=what)
    return _failed(state, Cause(kind="contradiction", what=what, where="run.json", next_step=step), stage)


def _failed(state: RunState, cause: Cause, stage: str) -> RunState:
    names = [each.name for each in state.stages]
    if stage:
        state = replace_stage(state, stage, state="failed", cause=cause)
        for name in names[names.index(stage) + 1 :]:
            state = replace_stage(state, name, state="not started", cause=None)
    ended_at = state.ended_at or utc_now()
    return dataclasses.replace(state, state="failed", exit_code=1, cause=None if stage else cause, ended_at=ended_at)


_RUNS = "runs"
_NOTE_FIELDS = {"run": "run", "name": "name", "engine": "engine_address", "started": "started_at", "place": "backend"}
"""Keys of a record's `note`, and the fields of `ContainerRef`."""


@dataclass(frozen=True, kw_only=True)
class ContainerRef:
    """The container `name` of the run `run`; `engine_address` is that of its engine when the container was made.

    `started_at` is when it was started, by its engine; None before. One that is missing then was removed by somebody
    else. `backend` is where the run takes place.
    """

    run: str
    name: str
    engine_address: str
    started_at: str | None = None
    backend: str = ""


@dataclass(frozen=True, kw_only=True)
class HostRunRecord:
    plan: RunPlan | None = None
    container_ref: ContainerRef | None = None
    outcome: RunOutcome | None = None


class HostRunRecordStore:
    def __init__(self, data: Path) -> None:
        self.folder = state_path(_RUNS, hashlib.sha256(str(data).encode("utf-8", "replace")).hexdigest()[:16])

    def list_run_ids(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def read_or_empty(self, run: str) -> HostRunRecord:
        data, plan = read_json_object_or_empty(self._path(run), follow_links=True), None
        with contextlib.suppress(RlboxError):  # a plan of another rlbox
            plan = parse_run_plan(data["plan"]) if data.get("plan") else None
        note, verdict = data.get("note"), parse_json_as(RunOutcome, data.get("verdict"))
        fields = {_NOTE_FIELDS.get(key, key): text for key, text in note.items()} if isinstance(note, dict) else None
        return HostRunRecord(plan=plan, container_ref=parse_json_as(ContainerRef, fields), outcome=verdict)

    def write(self, run: str, record: HostRunRecord) -> None:
        """Write down what is known of a run; raises `OSError`."""
        ref = record.container_ref
        note = ref and {key: getattr(ref, field) or "" for key, field in _NOTE_FIELDS.items()}
        verdict = dataclasses.asdict(record.outcome) if record.outcome else None
        data = {"schema": 1, "verdict": verdict, "note": note, "plan": record.plan.as_json() if record.plan else None}
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(self._path(run), json.dumps(data), mode=0o600)

    def delete(self, run: str) -> None:
        self._path(run).unlink(missing_ok=True)

    def _path(self, run: str) -> Path:
        if Path(run).name != run or run in ("", ".."):
            raise SpecError(_("{run!r} is not a valid run name").format(run=run))
        return self.folder / f"{run}.json"


def load_outcome_from_host_record(run_dir: Path) -> RunOutcome | None:
    return HostRunRecordStore(run_dir.parent.parent).read_or_empty(run_dir.name).outcome
