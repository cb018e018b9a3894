"""A run in place, for a machine that has no engine (or is a container itself): same stages, same gates."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlbox.app import App
from rlbox.doctor.gpu_choice import make_visible_gpus_env
from rlbox.engine.data_disk import create_or_check_data_disk
from rlbox.errors import NodeError, SpecError
from rlbox.i18n import _
from rlbox.image.plan import load_image_plan
from rlbox.job.filler import RunPaths
from rlbox.job.job import Job
from rlbox.job.names import SOURCE_PARAM
from rlbox.job.params import ParamValues
from rlbox.job.plan import RunPlan, plan_run
from rlbox.provision.layout import Layout
from rlbox.provision.locations import find_layout
from rlbox.provision.probe import read_record
from rlbox.provision.provision import StageEnvironment, make_stage_environment, prepare_stage_environment
from rlbox.record.disk_lock import DiskLock
from rlbox.record.host_record import ContainerRef
from rlbox.record.reconcile import RuntimeHandle
from rlbox.record.run_store import RunStore
from rlbox.run.backend import Backend, PreparedRun, SingleMachineBackend
from rlbox.run.data_disk import open_local_run_store, resolve_data_dir
from rlbox.secrets.handover import send_secrets
from rlbox.secrets.masks import SECRETS_VARIABLE
from rlbox.supervise.watchdog import LOG_FILE
from rlbox.system.command import DEVNULL, PIPE, run_in_foreground, start_command
from rlbox.system.safe_files import open_regular_fd
from rlbox.values import Command, Secret


class HostBackend(SingleMachineBackend):
    """Runs on this machine itself; nothing carries them but its processes."""

    is_local = True

    def open_data_disk(self, app: App, target: str, data: str | None, secrets: Mapping[str, Secret]) -> RunStore:
        """Return the data disk of this machine."""
        return open_local_run_store(app, target, data)

    def ensure_engine_and_image(self, app: App, target: str) -> None:
        """Make nothing: what is missing is laid when the place is made ready."""

    def prepare(
        self, app: App, target: str, run_store: RunStore, gpus: str, need_gib: float | None = None
    ) -> PreparedHost:
        """Return this machine, brought to the target's lock."""
        image = load_image_plan(app.project, target)
        with app.checking("lock"):
            image.require_lock()
        create_or_check_data_disk(app, run_store.data_dir, image.container, need_gib)
        chosen = make_visible_gpus_env(app, gpus)
        app.say("no container: the stages run in place on this machine, as you: they can change the run's own record")
        place = prepare_stage_environment(app, image, run_store.data_dir, chosen)
        return PreparedHost(target=target, run_store=run_store, place=place, gpus=gpus)

    def run_rlbox(self, app: App, target: str, words: tuple[str, ...], data: str | None, gpus: str) -> int:
        """Carry out `rlbox WORDS` where `rlbox apply` laid the target, with the environment that runs have there."""
        return run_rlbox_in_place(app, find_applied_layout(app, target, data), words, gpus)

    def open_runtime(self, note: ContainerRef) -> RuntimeHandle:
        """Refuse: no run in place writes a note."""
        raise SpecError(
            _("run {run} takes place here, where nothing carries it but processes").format(run=note.run),
            where=note.name,
        )

    def find_container(self, plan: RunPlan, data: Path) -> None:
        """Return nothing: what a run leaves here carries its marks."""


BACKEND: Backend = HostBackend()


def find_applied_layout(app: App, target: str, data: str | None) -> Layout:
    """Return where a target was applied to this machine; `NodeError` where it was not."""
    layout = find_layout(target, resolve_data_dir(app, target, data))
    if read_record(layout) is None:
        raise NodeError(
            _("target {target} was not applied to this machine").format(target=target),
            next_step=f"rlbox apply {target}",
        )
    return layout


def run_rlbox_in_place(app: App, layout: Layout, words: tuple[str, ...], gpus: str) -> int:
    """Carry out `rlbox WORDS` in a place as its runs are, whatever the shell exports; return its exit code."""
    place = make_stage_environment(layout, make_visible_gpus_env(app, gpus))
    safe = ("-P",) if sys.version_info >= (3, 11) else ()  # else Python looks for modules where the user stands
    argv = (*place.argv_prefix, sys.executable, *safe, "-m", "rlbox", *words)
    return run_in_foreground(Command(argv=argv), environ=place.env)


@dataclass(frozen=True, kw_only=True)
class PreparedHost:
    """The prepared environment for runs of a target, and their data disk."""

    target: str
    run_store: RunStore
    place: StageEnvironment
    gpus: str = ""
    network: str = "host"
    shares_host_ports: bool = True

    def plan_run(self, job: Job, values: ParamValues, run_id: str, secrets: tuple[str, ...]) -> RunPlan:
        """Return the plan of a new run."""
        run, data = self.run_store.run_dir(run_id), str(self.run_store.data_dir)
        python, own = str(self.place.python), sys.executable
        source = str(values.params[SOURCE_PARAM]) if job.source else ""
        paths = RunPaths(run=str(run), job=str(run / "job"), data=data, python=python, rlbox=own, source=source)
        plan = plan_run(job, values, paths, run_id=run_id, place="here", target=self.target, secrets=secrets)
        return dataclasses.replace(plan, gpus=self.gpus)

    def prepare_run(self, plan: RunPlan, run_dir: Path, secrets: Mapping[str, Secret]) -> PreparedRun:
        """Return the run, ready to start."""
        return PreparedRun(plan=plan, run_dir=run_dir, start=lambda hold: self._begin(run_dir, secrets, hold))

    def _begin(self, run_dir: Path, secrets: Mapping[str, Secret], hold: DiskLock) -> Callable[[], bool]:
        """Start the watchdog, which inherits the hold of the data disk and starts the supervisor.

        It has a session of its own that no terminal and no command line can take down.
        """
        known = self.place.env.get(SECRETS_VARIABLE, "")
        names = ",".join([*([known] if known else []), *secrets])  # told, so that no hook takes them for missing
        handles = ",".join(map(str, hold.handles))
        argv = (sys.executable, "-m", "rlbox.supervise", "--watchdog", str(run_dir), "--hold", handles)
        inherited = {name: value for name, value in self.place.env.items() if name not in secrets}
        with os.fdopen(open_regular_fd(run_dir / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as log:
            watchdog = start_command(
                Command(argv=(*self.place.argv_prefix, *argv), cwd="/"),  # where Python looks for modules first
                environ={**inherited, **({SECRETS_VARIABLE: names} if names else {})},
                stdin=PIPE if secrets else DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=hold.handles,
            )
        if watchdog.stdin:
            with contextlib.suppress(BrokenPipeError), watchdog.stdin as pipe:  # a watchdog that died tells why
                send_secrets(pipe.write, secrets)
        return lambda: watchdog.poll() is None
