"""A run in a container: checked first, then started; the container's process is the supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlbox.app import App
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.config.hub import CONTAINER_HUB_DIR
from rlbox.doctor.gpu_choice import choose_and_print_gpu_access, parse_image_environment, require_usable_local_gpus
from rlbox.engine.address import find_engine_url, is_engine_on_unix_socket, resolve_engine_address_opening_tunnel
from rlbox.engine.connection import connect_engine, require_image
from rlbox.engine.container import (
    ACTIVE_STATES,
    LOOPBACK,
    OWNER_LABEL,
    RUN_LABEL,
    TARGET_LABEL,
    ContainerPlan,
    NetworkKind,
    plan_container,
)
from rlbox.engine.data_disk import ensure_usable_data_dir_creating_default, report_and_require_local_devices
from rlbox.engine.gpu_access import NO_GPUS, GpuAccess
from rlbox.errors import EngineError, EngineUnavailable, MachineError, SpecError
from rlbox.i18n import _
from rlbox.image.context import find_image_outdated_reason
from rlbox.image.plan import ImagePlan, load_image_plan
from rlbox.job.cluster_job import ResolvedJob
from rlbox.job.job import Job
from rlbox.job.names import SOURCE_PARAM
from rlbox.job.params import ParamValues
from rlbox.job.plan import RunPlan
from rlbox.record.disk_lock import DiskLock
from rlbox.record.host_record import ContainerRef
from rlbox.record.reconcile import RuntimeStatus
from rlbox.record.run_dir import write_run_plan
from rlbox.record.run_store import RunStore
from rlbox.record.supervisor_exit import SupervisorExit, make_container_exit_info
from rlbox.run.backend import IsRunningCheck, RunOptions
from rlbox.run.data_disk import resolve_local_run_store, run_remotely_and_exit_if_engine_is_remote
from rlbox.run.exposure import drop_taken_published_ports_adding_notes
from rlbox.run.inputs import plan_container_run
from rlbox.secrets.masks import SECRETS_VARIABLE
from rlbox.system.identity import format_uid_gid
from rlbox.system.network_settings import find_env_or_pip_ca_bundle_or_empty
from rlbox.system.safe_files import list_directory_empty_if_missing, remove_tree
from rlbox.values import Mount, Secret

if TYPE_CHECKING:  # docker-py is slow to import, and a place is looked at where no engine is asked
    from rlbox.engine.docker import DockerEngine

_BYTECODE = "PYTHONPYCACHEPREFIX"
_NAME = "docker"


class DockerBackend:
    def __init__(self, options: RunOptions) -> None:
        self._options = options

    @property
    def is_data_disk_on_this_machine(self) -> bool:
        return is_engine_on_unix_socket()

    def open_store_or_run_remotely_and_exit(
        self, app: App, target: str, secrets_to_send: Mapping[str, Secret]
    ) -> RunStore:
        with app.collecting_refusals_if_dry_run("data disk", "memory", "ports"):
            run_remotely_and_exit_if_engine_is_remote(app, target, self._options.data, secrets_to_send)
        return resolve_local_run_store(app, target, self._options.data)

    def adapt_job_if_on_cluster(self, app: App, target: str, job: Job, values: ParamValues) -> ResolvedJob:
        return ResolvedJob(job=job, values=values)

    def check_and_prepare_run_start(
        self, app: App, target: str, run_store: RunStore, need_disk_gib: float | None
    ) -> DockerRunStarter:
        if self._options.build_missing:
            _ensure_engine_and_image(app, target)
        image = load_image_plan(app.project, target)
        if self.is_data_disk_on_this_machine:
            ensure_usable_data_dir_creating_default(app, run_store.data_dir, image.container, need_disk_gib)
        inspected: Mapping[str, Any] = {"Id": "IMAGE"}
        with app.collecting_refusals_if_dry_run("image"):
            inspected = inspected if image.tag in app.dry.built_tags else _check_image(app, image)
        access = require_devices_and_choose_gpus(app, image, self._options.gpus, inspected)
        with app.collecting_refusals_if_dry_run("network"):
            image = dataclasses.replace(
                image, container=connect_engine().use_host_network_if_no_bridge(image.container)
            )
        return DockerRunStarter(
            target=target,
            run_store=run_store,
            image=image,
            bytecode_dir_in_data=bytecode_dir_relative_to_data_disk(target, inspected),
            gpus=self._options.gpus,
            gpu_access=access,
            print_status=app.print_status,
        )


def require_devices_and_choose_gpus(app: App, image: ImagePlan, gpus: str, inspected: Mapping[str, Any]) -> GpuAccess:
    with app.collecting_refusals_if_dry_run("devices"):
        report_and_require_local_devices(app, image.container)
    access = choose_and_print_gpu_access(app, image, gpus)
    with app.collecting_refusals_if_dry_run("GPUs"):
        require_usable_local_gpus(app, image, gpus, access, parse_image_environment(inspected))
    return access


def bytecode_dir_relative_to_data_disk(target: str, image_inspection: Mapping[str, Any]) -> Path:
    """Return the folder of a data disk for what an image compiles.

    The image holds no bytecode, which would be a sixth of it: the first run on a disk compiles what it imports. Time
    stamps in an image are all alike, so the folder is named after the image.
    """
    return Path("cache/bytecode", target, str(image_inspection.get("Id", "")).rpartition(":")[2][:16])


def connect_to_engine_of_run_container(ref: ContainerRef) -> RunContainer:
    from rlbox.engine.docker import DockerEngine

    return RunContainer(engine=DockerEngine.connect(ref.engine_address), ref=ref)


def _ensure_engine_and_image(app: App, target: str) -> None:
    from rlbox.engine.setup import describe_missing_setup_steps, install_and_start_engine_and_build_tools
    from rlbox.image.build import ensure_current_image_built

    if not is_engine_on_unix_socket():
        raise SpecError(
            _("--build is for an engine on this machine: this one is at {engine_place}").format(
                engine_place=find_engine_url()
            ),
            next_step=_("rlbox build {target}, then the run without --build").format(target=target),
        )
    try:
        connect_engine()
    except EngineUnavailable:
        if app.dry_run:
            with app.collecting_refusals_if_dry_run("engine"):
                steps = describe_missing_setup_steps()
                app.dry.steps_before.extend(_("an engine: {step}").format(step=step) for step in steps)
        else:
            install_and_start_engine_and_build_tools(app.print_status)
    ensure_current_image_built(app, target)


@dataclass(frozen=True, kw_only=True)
class RunContainer:
    """The container that carries out a run, as its engine knows it; only one with the labels of that run is."""

    engine: DockerEngine
    ref: ContainerRef

    def status(self) -> RuntimeStatus:
        container = self.engine.inspect_container(self.ref.name)
        if container is None or container.labels.get(RUN_LABEL) != self.ref.run:
            return "gone"
        return "made" if container.status == "created" else "living" if container.status in ACTIVE_STATES else "ended"

    def assume_ended_and_find_exit_info_unless_removed(self) -> SupervisorExit | None:
        ended, output = self.engine.inspect_container(self.ref.name), self.engine.read_log(self.ref.name)
        if ended is None or output is None:
            return None
        info = make_container_exit_info(
            self.ref.name, ended.exit_code, out_of_memory=ended.out_of_memory, stderr_tail=output
        )
        was_restarted = self.ref.started_at and self.ref.started_at != ended.started_at
        return dataclasses.replace(info, kind="again") if was_restarted else info

    def stop_unless_gone_requiring_same_user(self, grace_s: int) -> None:
        if self._is_own():
            self.engine.stop_container(self.ref.name, grace_s)

    def remove_unless_gone_requiring_same_user(self) -> None:
        if self._is_own():
            self.engine.remove_container_and_network(self.ref.name)

    def _is_own(self) -> bool:
        """Whether it is there and of the run; `MachineError` when it is another user's."""
        container = self.engine.inspect_container(self.ref.name)
        if container is None or container.labels.get(RUN_LABEL) != self.ref.run:
            return False
        owner, uid = container.labels.get(OWNER_LABEL, "?"), format_uid_gid().partition(":")[0]
        if owner != uid and uid != "0":
            what = _("container {note} of the run belongs to another user (uid {owner})").format(
                note=self.ref.name, owner=owner
            )
            raise MachineError(what, next_step=_("ask that user, or do it as root"))
        return True


@dataclass(frozen=True, kw_only=True)
class DockerRunStarter:
    """The image and the engine for runs of a target; `bytecode_dir_in_data` is relative to the data disk.

    `image_ref` is what the engine calls the image where that is not by its tag, One that is not local is only shown.
    """

    target: str
    run_store: RunStore
    image: ImagePlan
    bytecode_dir_in_data: Path
    print_status: Callable[[str], None]
    gpus: str = ""
    gpu_access: GpuAccess = NO_GPUS
    backend_name: str = _NAME
    image_ref: str = ""
    will_start_on_this_machine: bool = True
    extra_env: Mapping[str, str] = field(default_factory=dict)
    extra_labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def network_kind(self) -> NetworkKind:
        return self.image.container.network

    @property
    def shares_local_machine_ports(self) -> bool:
        return self.will_start_on_this_machine and self.network_kind == "host" and is_engine_on_unix_socket()

    def create_run_plan(self, job: Job, values: ParamValues, run_id: str, secret_names: tuple[str, ...]) -> RunPlan:
        mount = self.image.container.disk_mount
        plan = plan_container_run(job, values, mount, run_id, self.backend_name, self.target, secret_names)
        env = {_BYTECODE: f"{mount}/{self.bytecode_dir_in_data}", **plan.env}
        return dataclasses.replace(plan, env=env, container=f"rlbox-{run_id}", gpus=self.gpus)

    def start(self, plan: RunPlan, run_dir: Path, secrets: Mapping[str, Secret], lock: DiskLock) -> IsRunningCheck:
        """The container stays after its end until somebody has reconciled the run."""
        self._remove_outdated_bytecode()
        ref = ContainerRef(
            run=plan.run_id,
            name=plan.container,
            engine_address=resolve_engine_address_opening_tunnel(),
            backend=self.backend_name,
        )
        engine = connect_engine()
        plan = self._start_container(engine, ref, plan, run_dir, secrets)
        for name, port in plan.published.items():
            self.print_status(_("port {name} is published: {address}").format(name=name, address=f"{LOOPBACK}:{port}"))
        # it runs: a disk that is full is for its supervisor to tell, and an engine that is gone for who follows
        with contextlib.suppress(OSError, EngineError):
            container = engine.inspect_container(plan.container)
            started = container.started_at if container else "unknown"
            self.run_store.save_container_ref_and_plan(dataclasses.replace(ref, started_at=started))
        return lambda: engine.is_container_active(plan.container)

    def _remove_outdated_bytecode(self) -> None:
        compiled = (self.run_store.data_dir / self.bytecode_dir_in_data).parent
        for name in list_directory_empty_if_missing(compiled):
            if name != self.bytecode_dir_in_data.name:
                remove_tree(compiled / name)

    def _plan_container(self, plan: RunPlan, secrets: Mapping[str, Secret]) -> ContainerPlan:
        tree = plan.paths.source
        snapshots = ObjectStore(resolve_store_dir(None)).snapshots_dir
        mounts = [Mount(source=str(plan.params[SOURCE_PARAM]), target=tree, read_only=True)] if tree else []
        mounts += [
            Mount(source=str(snapshots / Path(folder).name), target=folder, read_only=True)
            for folder in sorted(set(plan.hub.values()))
            if folder.startswith(f"{CONTAINER_HUB_DIR}/")
        ]
        return plan_container(
            self.image_ref or self.image.tag,
            self.image.container,
            name=plan.container,
            argv=("/opt/rlbox/bin/python", "-m", "rlbox.supervise", plan.paths.run),
            env={**self.extra_env, **({SECRETS_VARIABLE: ",".join(secrets)} if secrets else {})},
            labels={
                **self.extra_labels,
                TARGET_LABEL: self.target,
                RUN_LABEL: plan.run_id,
                OWNER_LABEL: format_uid_gid().partition(":")[0],
            },
            data_dir=str(self.run_store.data_dir),
            caller_uid_gid=format_uid_gid(),
            ca_bundle=find_env_or_pip_ca_bundle_or_empty() if is_engine_on_unix_socket() else "",
            gpus=self.gpu_access,
            init=False,  # the supervisor is process 1, which nothing in the container can kill
            mounts=tuple(mounts),
        )

    def _start_container(
        self, engine: DockerEngine, ref: ContainerRef, plan: RunPlan, run_dir: Path, secrets: Mapping[str, Secret]
    ) -> RunPlan:
        """Start the container; a port that is taken on the engine's machine, as by another run, is not published."""
        from rlbox.engine.docker import PortTakenError

        container = self._plan_container(plan, secrets)
        while True:
            self.run_store.save_container_ref_and_plan(ref, plan)
            try:
                ports = tuple(plan.published.values())
                engine.create_and_start_container_and_network(
                    dataclasses.replace(container, published_ports=ports), secrets
                )
                return plan
            except PortTakenError as error:
                told, plan = len(plan.notes), drop_taken_published_ports_adding_notes(plan, error.ports)
                write_run_plan(run_dir, plan)
                for note in plan.notes[told:]:
                    self.print_status(note)


def _check_image(app: App, image: ImagePlan) -> Mapping[str, Any]:
    inspected = require_image(image.tag, image.target)
    if reason := find_image_outdated_reason(image, inspected):
        what = _("the image {tag} is out of date: {why}").format(tag=image.tag, why=reason)
        raise EngineError(what, next_step=f"rlbox build {image.target}")
    return inspected
