"""Start a run at either place, follow it or leave it alone, and say how it ended."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from rlbox.app import App
from rlbox.errors import EngineError, Interrupted, NodeError, SpecError
from rlbox.image.act.plans import image_plan
from rlbox.job.plan import RunPlan
from rlbox.machine.act.identity import user_name
from rlbox.record.act.container_note import list_notes
from rlbox.record.act.disk_lock import DiskLock, Holder, disk_holder, held_by, take_disk
from rlbox.record.act.folder import stage_of
from rlbox.record.act.reconcile import connect_engine, reconcile_locked
from rlbox.record.act.state import load_run_state
from rlbox.run.follow import finish, follow
from rlbox.run.stop import stop_run
from rlbox.values import Secret

if TYPE_CHECKING:
    from rlbox.job.job import Job
    from rlbox.job.params import Values

_ENGINE_S = 60.0
"""How long an engine may be away, as when it is restarted, before nobody can tell how its container is."""
_PAUSE_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How a run is started: left alone at once or followed, from which stage, and what goes with it."""

    detach: bool = False
    first_stage: str = ""
    force: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    env_file: str | None = None
    gpus: str = ""
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def having(self, secrets: Mapping[str, Secret]) -> Wanted:
        """Return it with the secrets that the run gets."""
        return dataclasses.replace(self, secrets=secrets)


class Start(Protocol):
    """A run that is ready to start at its place."""

    plan: RunPlan
    run_dir: Path

    def begin(self, lock: DiskLock) -> None:
        """Start it; from then on it depends on nobody."""

    def alive(self) -> bool:
        """Whether its container, or the process that was started, is still there."""


def launch(app: App, data: Path, me: Holder, prepare: Callable[[], Start], wanted: Wanted) -> int:
    """Start a run on the data disk `data` and follow it to its end; return rlbox's exit code.

    Parameters
    ----------
    me
        Who holds the disk while the run is being started.
    prepare
        Called once the disk is held and older runs are settled.

    Raises
    ------
    LockHeld
        Another run goes on there.
    Interrupted
        Ctrl-C or SIGTERM came; the run was stopped, nothing of it is left.
    """
    with interruptible() as stopped:
        start = _begin(app, data, me, prepare, stopped)
        alive = _Alive(data, start)
        if wanted.detach and not stopped():
            return _leave_alone(app, data, start, alive)
        follow(app, start.run_dir, lambda: not stopped() and alive())
        if stopped():
            app.say("stopping the run")
            stop_run(data, start.run_dir, start.plan, user=user_name(), by=stopped.name)
    code = finish(app, data, start.run_dir, start.plan, me)
    if stopped():
        what = f"run {start.plan.run_id} was stopped; nothing of it is left running"
        raise Interrupted(what, where=str(start.run_dir))
    return code


def _begin(app: App, data: Path, me: Holder, prepare: Callable[[], Start], stopped: Stopped) -> Start:
    lock = take_disk(data, me, stage_of=partial(stage_of, data))
    try:
        found = reconcile_locked(data)
        for run, why in found.unsettled.items():
            app.say(f"run {run} {why}")
        if found.alive:
            raise held_by(
                Holder(run=found.alive[0], what="its container runs"), lock.path, stage_of(data, found.alive[0])
            )
        start = prepare()
        lock.tell(dataclasses.replace(me, run=start.plan.run_id, job=start.plan.job))
        if stopped():
            what = f"run {start.plan.run_id} was stopped before it started"
            raise Interrupted(what, where=str(start.run_dir), next_step=f"rlbox run --resume {start.plan.run_id}")
        start.begin(lock)
    except OSError as error:
        raise NodeError(
            f"the run cannot be written down: {error.strerror or error}",
            where=str(error.filename or data),
            next_step="free space there, or name another disk with --data DIR",
        ) from error
    finally:
        lock.leave()
    return start


def _leave_alone(app: App, data: Path, start: Start, alive: Callable[[], bool]) -> int:
    """Wait until the supervisor has taken over, and say how to come back to the run."""
    run = start.plan.run_id
    while alive():
        try:
            state = load_run_state(start.run_dir)
        except SpecError:
            state = None
        if state and state.attempt >= start.plan.attempt and state.state == "running":
            app.result({"run": run, "folder": str(start.run_dir), "state": state.state}, run)
            app.say(f"run {run} goes on by itself: rlbox attach {run}, rlbox logs -f {run}, rlbox stop {run}")
            return 0
        time.sleep(_PAUSE_S)
    return finish(app, data, start.run_dir, start.plan, Holder(what="the end of a run"))


def run_goes_on(data: Path, run: str) -> bool:
    """Whether a run goes on, by its hold of the disk, or by its container while that is still starting."""
    holder = disk_holder(data)
    if holder and holder.run == run:
        return True
    note = list_notes(data).get(run)
    return note is not None and connect_engine(note.engine).running(note.name)


class _Alive:
    """Whether a run goes on: its supervisor holds the disk, or its container or process is there."""

    def __init__(self, data: Path, start: Start) -> None:
        self._data = data
        self._start = start
        self._away_since = 0.0

    def __call__(self) -> bool:
        holder = disk_holder(self._data)
        if holder and holder.run == self._start.plan.run_id:
            return True
        try:
            found = self._start.alive()
        except EngineError:
            self._away_since = self._away_since or time.monotonic()
            if time.monotonic() - self._away_since > _ENGINE_S:
                raise
            return True
        self._away_since = 0.0
        return found


class Stopped:
    """Whether Ctrl-C or SIGTERM came; it is asked between polls, so that no step is torn."""

    def __init__(self) -> None:
        self.name = ""

    def __call__(self) -> bool:
        return bool(self.name)

    def note(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal."""
        self.name = self.name or ("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)


@contextmanager
def interruptible() -> Iterator[Stopped]:
    """Note Ctrl-C and SIGTERM instead of dying of them while the block runs."""
    stopped = Stopped()
    before = {number: signal.signal(number, stopped.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, action in before.items():
            signal.signal(number, action)


STACK_PYTHON = "/opt/venv/bin/python"


def job_secrets(app: App, job: Job, target: str, data: str | None, env_file: str | None) -> dict[str, Secret]:
    """Return the secrets of a job; `SpecError` when a required one is nowhere."""
    from pathlib import Path

    if not (job.secrets or job.optional_secrets or env_file):
        return {}
    from rlbox.engine.act.data_disk import data_folder
    from rlbox.fixes.bake import secret_aliases
    from rlbox.fixes.load import load_fixes
    from rlbox.secrets.act.find import find_secrets

    return find_secrets(
        job.secrets,
        job.optional_secrets,
        env_file=Path(env_file) if env_file else None,
        folders=(app.project.folder, data_folder(image_plan(app.project, target).container, data)),
        environ=os.environ,
        aliases=secret_aliases(load_fixes(app.project)),
    )


def container_plan(
    job: Job, values: Values, mount: str, run_id: str, target: str, secrets: tuple[str, ...] = ()
) -> RunPlan:
    """Return the plan of a run in a container that sees the data disk at `mount`."""
    from rlbox.job.plan import Paths, plan_run

    folder = f"{mount}/runs/{run_id}"
    paths = Paths(run=folder, job=f"{folder}/job", data=mount, python=STACK_PYTHON)
    return plan_run(job, values, paths, run_id=run_id, place="docker", target=target, secrets=secrets)


def programs(app: App, job: Job) -> Path | None:
    """Return the folder of the job's own programs, beside its file, if it has one."""
    folder = app.project.job_file(job.name).with_suffix("")
    return folder if folder.is_dir() else None
