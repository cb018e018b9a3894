"""The state of a run as values, and `run.json`.

`run.json` is always the whole old state or the whole new one; each line of `events.jsonl` stands alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from rlbox.amounts import utc_now
from rlbox.diagnose.cause import Cause
from rlbox.errors import SpecError
from rlbox.foreign import parse_untrusted_json
from rlbox.gate.gate import GateChecker
from rlbox.gate.line_rules import RuleState
from rlbox.i18n import _
from rlbox.job.names import ATTEMPT_PREFIX
from rlbox.job.plan import RunPlan
from rlbox.secrets.masks import SecretMasker
from rlbox.system.json_files import read_valid_json_from_tail_or_nothing
from rlbox.system.safe_files import (
    ensure_dir_without_parents,
    list_directory_empty_if_missing,
    read_bytes,
    rename_path,
    replace_file,
)

T = TypeVar("T")


def parse_json_as(value_type: type[T], data: object) -> T | None:
    try:
        return cast(T, _adapter(cast(Any, value_type)).validate_python(data))
    except ValidationError:
        return None


@functools.cache  # building one takes milliseconds, and a record has thousands of lines
def _adapter(value_type: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(value_type)


RUN_FILE = "run.json"
EVENTS_FILE = "events.jsonl"
SCHEMA = 1

RunStatus = Literal["running", "passed", "failed", "interrupted"]
StageStatus = Literal["waiting", "starting", "running", "passed", "failed", "not started", "interrupted", "skipped"]
ServiceStatus = Literal["waiting", "starting", "ready", "kept", "ended", "stopped"]
_RUN_WORDS = (_("running"), _("passed"), _("failed"), _("interrupted"))
_STAGE_WORDS = (_("waiting"), _("starting"), _("not started"), _("skipped"), _("ready"), _("kept"), _("ended"))
"""States of runs, stages and services, marked for translation: `_(state)` prints one."""


@dataclass(frozen=True, kw_only=True)
class ServiceState:
    """One service of a stage; `exit_code` is negative for a signal, None while it runs."""

    name: str
    title: str
    state: ServiceStatus = "waiting"
    started_at: str = ""
    ready_at: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True)
class StageState:
    """One stage; times are UTC in ISO 8601, empty for what has not happened.

    `seconds` is how long it took by a clock that cannot be set; 0 until it ended. `attempt` counts from 1.
    """

    name: str
    title: str
    directory: str
    state: StageStatus = "waiting"
    started_at: str = ""
    ended_at: str = ""
    exit_code: int | None = None
    ray_status: str = ""
    services: tuple[ServiceState, ...] = ()
    gate: tuple[RuleState, ...] = ()
    cause: Cause | None = None
    attempt: int = 1
    seconds: float = 0.0
    phase: str = ""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """A run: `run.json` holds exactly these keys and `schema`.

    `cause` is that of a run which ended between its stages; one that ended in a stage has it there (`find_run_cause`).
    """

    run_id: str
    job: str
    target: str
    place: str
    profile: str
    supervisor_pid: int
    state: RunStatus = "running"
    started_at: str = ""
    ended_at: str = ""
    exit_code: int | None = None
    stages: tuple[StageState, ...] = ()
    attempt: int = 1
    notes: tuple[str, ...] = ()
    cause: Cause | None = None


def find_run_cause(run: RunState) -> Cause | None:
    return run.cause or next((stage.cause for stage in run.stages if stage.cause), None)


def create_run_state(plan: RunPlan, supervisor_pid: int) -> RunState:
    stages = tuple(
        StageState(
            name=stage.name,
            title=stage.title,
            directory=stage.directory,
            services=tuple(ServiceState(name=service.name, title=service.title) for service in stage.services),
            gate=GateChecker(stage).copy_rule_states(),
        )
        for stage in plan.stages
    )
    return RunState(
        run_id=plan.run_id,
        job=plan.job,
        target=plan.target,
        place=plan.place,
        profile=plan.profile,
        supervisor_pid=supervisor_pid,
        started_at=utc_now(),
        stages=stages,
        attempt=plan.attempt,
        notes=plan.notes,
    )


def replace_stage(run: RunState, stage_name: str, **changes: Any) -> RunState:
    stages = tuple(dataclasses.replace(s, **changes) if s.name == stage_name else s for s in run.stages)
    return dataclasses.replace(run, stages=stages)


def replace_service(run: RunState, stage: str, service: str, **changes: Any) -> RunState:
    old = next(s for s in run.stages if s.name == stage)
    services = tuple(dataclasses.replace(s, **changes) if s.name == service else s for s in old.services)
    return replace_stage(run, stage, services=services)


def write_run_state(run_dir: Path, run: RunState, masks: SecretMasker, *, durable: bool = True) -> None:
    """Write `run.json` whole or not at all, secrets masked; `durable`: have it on the disk before returning."""
    data = {"schema": SCHEMA, **masks.mask_json(dataclasses.asdict(run))}
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    replace_file(run_dir / RUN_FILE, text.encode("utf-8", "replace"), durable=durable)


def load_run_state(run_dir: Path) -> RunState:
    """Return the state that `write_run_state` wrote; `SpecError` when there is none, or it is torn or foreign."""
    path = run_dir / RUN_FILE
    try:
        data = parse_untrusted_json(read_bytes(path))
    except FileNotFoundError as error:
        raise SpecError(
            _("this folder holds no run"), where=str(path), next_step=_("list the runs with: rlbox runs")
        ) from error
    except (OSError, ValueError) as error:
        raise SpecError(
            _("run.json cannot be read: {error}").format(error=error), where=str(path), next_step="rlbox runs"
        ) from error
    if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
        raise SpecError(
            _("run.json was not written by this rlbox (it reads schema {schema})").format(schema=SCHEMA),
            where=str(path),
        )
    try:
        state: RunState = _adapter(RunState).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SpecError(
            _("run.json is not the state of a run: {key}: {msg}").format(key=key, msg=first["msg"]), where=str(path)
        ) from error
    if strange := _strange_path(state):
        raise SpecError(
            _("run.json names a path outside its run: {strange!r}").format(strange=strange), where=str(path)
        )
    return state


def _strange_path(state: RunState) -> str:
    folders = [PurePath(stage.directory) for stage in state.stages]
    names = [PurePath(service.name) for stage in state.stages for service in stage.services]
    strange = [path for path in folders + names if path.is_absolute() or ".." in path.parts]
    strange += [path for path in names if len(path.parts) != 1]
    return str(next(iter(strange), ""))


_EVENTS_BYTES = 32 << 20


def load_run_state_or_none(run_dir: Path) -> RunState | None:
    try:
        return load_run_state(run_dir)
    except SpecError:
        return None


def iter_events_in_file_tail_or_nothing(run_dir: Path) -> Iterator[dict[str, Any]]:
    return (
        event
        for event in read_valid_json_from_tail_or_nothing(run_dir / EVENTS_FILE, _EVENTS_BYTES)
        if "event" in event
    )


def archive_rerun_stages_and_build_state(run_dir: Path, plan: RunPlan, supervisor_pid: int) -> RunState:
    """Return the state to start with, and move what earlier attempts left in stages that run again out of the way.

    Stages that passed stay passed up to `plan.begin_at` (or the first that did not). The files of every other stage go
    to `attempt-N/` below its directory, and `run.json` as it was becomes `run.attempt-N.json`. Being killed in the
    middle loses nothing: the next attempt moves the rest to the same place. Raises `OSError`.
    """
    state = create_run_state(plan, supervisor_pid)
    before = load_run_state_or_none(run_dir) if plan.attempt > 1 else None
    stages = {stage.name: stage for stage in state.stages}
    if before:
        with contextlib.suppress(FileNotFoundError):
            replace_file(run_dir / f"run.{ATTEMPT_PREFIX}{before.attempt}.json", read_bytes(run_dir / RUN_FILE))
        runs = compute_attempts_of_stages_to_run(before, plan.begin_at or find_first_unpassed_unskipped_stage(before))
        for old in (old for old in before.stages if old.name in stages):
            new, attempt = stages[old.name], runs.get(old.name)
            if attempt is not None and attempt > old.attempt:
                _move_away(run_dir / new.directory, f"{ATTEMPT_PREFIX}{old.attempt}")
            stages[old.name] = old if attempt is None else dataclasses.replace(new, attempt=attempt)
        state = dataclasses.replace(state, started_at=before.started_at)
    for name in stages.keys() & {*plan.skipped}:
        stages[name] = dataclasses.replace(stages[name], state="skipped", cause=None)
    return dataclasses.replace(state, stages=tuple(stages.values()))


def compute_attempts_of_stages_to_run(previous_state: RunState, first_stage_to_run: str | None) -> dict[str, int]:
    """Return the stages from `first_stage_to_run` on, none without it, with each one's attempt, from 1."""
    names = [stage.name for stage in previous_state.stages]
    first = names.index(first_stage_to_run) if first_stage_to_run in names else len(names)
    return {stage.name: stage.attempt + bool(stage.started_at) for stage in previous_state.stages[first:]}


def find_first_unpassed_unskipped_stage(previous_state: RunState) -> str | None:
    return next((stage.name for stage in previous_state.stages if stage.state not in ("passed", "skipped")), None)


def _move_away(folder: Path, name: str) -> None:
    for own in list_directory_empty_if_missing(folder):
        if not own.startswith(ATTEMPT_PREFIX):
            ensure_dir_without_parents(folder / name)
            rename_path(folder / own, folder / name / own)
