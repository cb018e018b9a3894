"""Runs on this machine itself, without a container: same stages, same gates."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlbox.app import App
from rlbox.doctor.gpu_choice import choose_and_print_gpu_env_or_empty
from rlbox.engine.container import NetworkKind
from rlbox.engine.data_disk import ensure_usable_data_dir_creating_default
from rlbox.errors import MachineError
from rlbox.i18n import _
from rlbox.image.plan import load_image_plan
from rlbox.job.cluster_job import ResolvedJob
from rlbox.job.job import Job
from rlbox.job.names import SOURCE_PARAM
from rlbox.job.params import ParamValues
from rlbox.job.plan import ProcessPaths, RunPlan, plan_run
from rlbox.provision.layout import Layout
from rlbox.provision.locations import find_applied_or_default_layout
from rlbox.provision.probe import read_install_record
from rlbox.provision.provision import StageEnvironment, inherit_stage_environment, provision_stage_environment
from rlbox.record.disk_lock import DiskLock
from rlbox.record.run_store import RunStore
from rlbox.record.supervisor_file import LOG_FILE
from rlbox.run.backend import IsRunningCheck, RunOptions
from rlbox.run.data_disk import resolve_data_dir_or_default, resolve_local_run_store
from rlbox.secrets.handover import try_send_secrets
from rlbox.secrets.masks import SECRETS_VARIABLE
from rlbox.system.command import DEVNULL, PIPE, run_in_foreground, start_command
from rlbox.system.safe_files import open_regular_fd
from rlbox.values import Command, Secret


class HostBackend:
    """Runs whose processes are those of this machine; no record says what carries them."""

    is_data_disk_on_this_machine = True

    def __init__(self, options: RunOptions) -> None:
        self._options = options

    def open_store_or_run_remotely_and_exit(
        self, app: App, target: str, secrets_to_send: Mapping[str, Secret]
    ) -> RunStore:
        return resolve_local_run_store(app, target, self._options.data)

    def adapt_job_if_on_cluster(self, app: App, target: str, job: Job, values: ParamValues) -> ResolvedJob:
        return ResolvedJob(job=job, values=values)

    def check_and_prepare_run_start(
        self, app: App, target: str, run_store: RunStore, need_disk_gib: float | None
    ) -> HostRunStarter:
        image = load_image_plan(app.project, target)
        with app.collecting_refusals_if_dry_run("lock"):
            image.require_current_lock()
        ensure_usable_data_dir_creating_default(app, run_store.data_dir, image.container, need_disk_gib)
        chosen = choose_and_print_gpu_env_or_empty(app, self._options.gpus)
        app.print_status(
            _("no container: the stages run directly on this machine, as you; they can change the run's own record")
        )
        environment = provision_stage_environment(app, image, run_store.data_dir, chosen)
        return HostRunStarter(target=target, run_store=run_store, environment=environment, gpus=self._options.gpus)


def require_applied_layout_even_outdated(app: App, target: str, data_option: str | None) -> Layout:
    """Return where a target was applied to this machine; `MachineError` where it was not."""
    layout = find_applied_or_default_layout(target, resolve_data_dir_or_default(app, target, data_option))
    if read_install_record(layout) is None:
        raise MachineError(
            _("target {target} was not applied to this machine").format(target=target),
            next_step=f"rlbox apply {target}",
        )
    return layout


def run_rlbox_in_layout(app: App, layout: Layout, args: tuple[str, ...], gpus: str) -> int:
    """Run `rlbox ARGS` in the environment of runs in `layout`, whatever the shell exports; return its exit code."""
    environment = inherit_stage_environment(layout, choose_and_print_gpu_env_or_empty(app, gpus))
    safe = ("-P",) if sys.version_info >= (3, 11) else ()  # else Python looks for modules where the user stands
    argv = (*environment.argv_prefix, sys.executable, *safe, "-m", "rlbox", *args)
    return run_in_foreground(Command(argv=argv), base_env=environment.env)


@dataclass(frozen=True, kw_only=True)
class HostRunStarter:
    target: str
    run_store: RunStore
    environment: StageEnvironment
    gpus: str = ""
    network_kind: NetworkKind = "host"
    shares_local_machine_ports: bool = True

    def create_run_plan(self, job: Job, values: ParamValues, run_id: str, secret_names: tuple[str, ...]) -> RunPlan:
        run, data = self.run_store.run_dir(run_id), str(self.run_store.data_dir)
        python, own = str(self.environment.python), sys.executable
        source = str(values.params[SOURCE_PARAM]) if job.source else ""
        paths = ProcessPaths(run=str(run), job=str(run / "job"), data=data, python=python, rlbox=own, source=source)
        plan = plan_run(job, values, paths, run_id=run_id, place="here", target=self.target, secrets=secret_names)
        return dataclasses.replace(plan, gpus=self.gpus)

    def start(self, plan: RunPlan, run_dir: Path, secrets: Mapping[str, Secret], lock: DiskLock) -> IsRunningCheck:
        """Start the watchdog, in a session of its own that no terminal and no command line can take down."""
        known = self.environment.env.get(SECRETS_VARIABLE, "")
        names = ",".join([*([known] if known else []), *secrets])  # named, so that no hook takes them for missing
        argv = (sys.executable, "-m", "rlbox.supervise", "--watchdog", str(run_dir), "--hold", str(lock.handle))
        inherited = {name: value for name, value in self.environment.env.items() if name not in secrets}
        with os.fdopen(open_regular_fd(run_dir / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as log:
            watchdog = start_command(
                Command(argv=(*self.environment.argv_prefix, *argv), cwd="/"),  # where Python looks for modules first
                base_env={**inherited, **({SECRETS_VARIABLE: names} if names else {})},
                stdin=PIPE if secrets else DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock.handle,),
            )
        if watchdog.stdin:
            with contextlib.suppress(BrokenPipeError), watchdog.stdin as pipe:  # the log of a dead watchdog says why
                try_send_secrets(pipe.write, secrets)
        return lambda: watchdog.poll() is None
