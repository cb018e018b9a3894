"""The state of a run as values, and `run.json`, which is always the whole old state or the whole new one."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

from pydantic import ValidationError

from rlbox.diagnose.cause import Cause
from rlbox.errors import SpecError
from rlbox.foreign import parse_json
from rlbox.gate.gate import GateJudge
from rlbox.gate.rules import RuleState
from rlbox.i18n import _
from rlbox.job.plan import RunPlan
from rlbox.record.kinds import type_adapter
from rlbox.secrets.masks import SecretMasker
from rlbox.system.clock import utc_now
from rlbox.system.safe_files import read_bytes, replace_file

RUN_FILE = "run.json"
SCHEMA = 1

RunStatus = Literal["running", "passed", "failed", "interrupted"]
StageStatus = Literal["waiting", "starting", "running", "passed", "failed", "not started", "interrupted", "skipped"]
ServiceStatus = Literal["waiting", "starting", "ready", "kept", "ended", "stopped"]
PlotStatus = Literal["", "drawn", "failed", "skipped"]


@dataclass(frozen=True, kw_only=True)
class ServiceState:
    """One service of a stage; `exit_code` is negative for a signal, None while it runs.

    `weights_bytes` is what it has to load as far as its command names it, 0 where that is not known.
    """

    name: str
    title: str
    state: ServiceStatus = "waiting"
    started_at: str = ""
    ready_at: str = ""
    exit_code: int | None = None
    weights_bytes: int = 0


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
class PlotResult:
    """What became of the curves; `path` is set when the picture is there."""

    state: PlotStatus = ""
    detail: str = ""
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """A run: `run.json` holds exactly these keys and `schema`.

    `cause` is that of a run which ended between its stages; one that ended in a stage has it there (`run_cause`).
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
    plot: PlotResult = PlotResult()
    stages: tuple[StageState, ...] = ()
    attempt: int = 1
    notes: tuple[str, ...] = ()
    cause: Cause | None = None


def run_cause(run: RunState) -> Cause | None:
    """Return why the run ended as it did, None when it passed or goes on."""
    return run.cause or next((stage.cause for stage in run.stages if stage.cause), None)


def new_run_state(plan: RunPlan, supervisor_pid: int) -> RunState:
    """Return the state of a run that starts now, all stages waiting."""
    stages = tuple(
        StageState(
            name=stage.name,
            title=stage.title,
            directory=stage.directory,
            services=tuple(ServiceState(name=service.name, title=service.title) for service in stage.services),
            gate=GateJudge(stage).states(),
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


def change_stage(run: RunState, name: str, **changes: Any) -> RunState:
    """Return `run` with fields of one stage changed."""
    stages = tuple(dataclasses.replace(s, **changes) if s.name == name else s for s in run.stages)
    return dataclasses.replace(run, stages=stages)


def change_service(run: RunState, stage: str, service: str, **changes: Any) -> RunState:
    """Return `run` with fields of one service of one stage changed."""
    old = next(s for s in run.stages if s.name == stage)
    services = tuple(dataclasses.replace(s, **changes) if s.name == service else s for s in old.services)
    return change_stage(run, stage, services=services)


def write_run_state(run_dir: Path, run: RunState, masks: SecretMasker, *, durable: bool = True) -> None:
    """Write `run.json` whole or not at all, secrets masked; `durable`: have it on the disk before returning.

    Raises
    ------
    OSError
        The disk is full or gone; the old file is untouched and no draft is left.
    """
    text = json.dumps({"schema": SCHEMA, **masks.tree(dataclasses.asdict(run))}, indent=1, ensure_ascii=False) + "\n"
    replace_file(run_dir / RUN_FILE, text.encode("utf-8", "replace"), durable=durable)


def load_run_state(run_dir: Path) -> RunState:
    """Return the state that `write_run_state` wrote.

    Raises
    ------
    SpecError
        There is no `run.json`, or it is torn, of another schema, or not of rlbox.
    """
    path = run_dir / RUN_FILE
    try:
        data = parse_json(read_bytes(path))
    except FileNotFoundError as error:
        raise SpecError(
            _("this folder holds no run"), where=str(path), next_step=_("list the runs with: rlbox runs")
        ) from error
    except (OSError, ValueError) as error:
        raise SpecError(_("run.json cannot be read: {error}").format(error=error), where=str(path)) from error
    if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
        raise SpecError(
            _("run.json was not written by this rlbox (it reads schema {schema})").format(schema=SCHEMA),
            where=str(path),
        )
    try:
        state = type_adapter(RunState).validate_python(data)
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
    """Return what a state calls a stage's folder or a service, though it is no path within the run; empty for none."""
    folders = [PurePath(stage.directory) for stage in state.stages]
    names = [PurePath(service.name) for stage in state.stages for service in stage.services]
    strange = [path for path in folders if path.is_absolute() or ".." in path.parts]
    return str(next(iter(strange + [path for path in names if len(path.parts) != 1 or path.is_absolute()]), ""))
