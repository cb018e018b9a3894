"""A run in a container: checked first, then started; the container's process is the supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlbox.app import App
from rlbox.diagnose.cause import ExitInfo, make_container_exit_info
from rlbox.doctor.gpu_choice import choose_container_gpus, parse_image_environment, require_usable_gpus
from rlbox.engine.address import find_engine_url, is_engine_local, open_engine_connection_address
from rlbox.engine.connection import connect_engine
from rlbox.engine.container import (
    ACTIVE_STATES,
    LOOPBACK,
    OWNER_LABEL,
    RUN_LABEL,
    TARGET_LABEL,
    ContainerPlan,
    plan_container,
)
from rlbox.engine.data_disk import create_or_check_data_disk, require_devices
from rlbox.engine.gpu_access import NO_GPUS, GpuAccess
from rlbox.errors import EngineError, NodeError, NotAnswered, SpecError
from rlbox.i18n import _
from rlbox.image.check import require_project_image
from rlbox.image.context import find_outdated_reason
from rlbox.image.plan import ImagePlan, load_image_plan
from rlbox.job.job import Job
from rlbox.job.names import SOURCE_PARAM
from rlbox.job.params import ParamValues
from rlbox.job.plan import RunPlan
from rlbox.record.host_record import ContainerRef
from rlbox.record.reconcile import RuntimeStatus
from rlbox.record.run_dir import write_plan
from rlbox.record.run_store import RunStore
from rlbox.run.backend import Backend, PreparedRun, SingleMachineBackend
from rlbox.run.data_disk import open_local_run_store, run_on_remote_engine
from rlbox.run.exec import open_shell
from rlbox.run.exposure import drop_taken_ports
from rlbox.run.inputs import plan_container_run
from rlbox.secrets.masks import SECRETS_VARIABLE
from rlbox.system.identity import format_user_ids
from rlbox.system.network_settings import find_ca_bundle
from rlbox.system.safe_files import list_directory, remove_tree
from rlbox.values import Mount, Secret

if TYPE_CHECKING:  # docker-py is slow to import, and a place is looked at where no engine is asked
    from rlbox.engine.docker import DockerEngine

# The image holds no bytecode, which would be a sixth of it: the first run on a disk compiles what it imports. Time
# stamps in an image are all alike, so the folder is named after the image.
BYTECODE = "PYTHONPYCACHEPREFIX"
_NAME = "docker"


class DockerBackend(SingleMachineBackend):
    """Runs in containers of their targets' images."""

    @property
    def is_local(self) -> bool:
        """Whether the engine is on this machine."""
        return is_engine_local()

    def open_data_disk(self, app: App, target: str, data: str | None, secrets: Mapping[str, Secret]) -> RunStore:
        """Return the data disk, which lies beside the engine."""
        with app.checking("data disk", "memory", "ports"):
            run_on_remote_engine(app, target, data, {name: secret.reveal() for name, secret in secrets.items()})
        return open_local_run_store(app, target, data)

    def ensure_engine_and_image(self, app: App, target: str) -> None:
        """Start an engine where none answers, and build the image where there is none, or an outdated one."""
        from rlbox.engine.setup import install_and_start_engine, list_setup_steps
        from rlbox.image.build import ensure_image_built

        if not self.is_local:
            what = _("--build is for an engine on this machine: this one is at {engine_place}").format(
                engine_place=find_engine_url()
            )
            raise SpecError(
                what, next_step=_("rlbox build {target}, then the run without --build").format(target=target)
            )
        try:
            connect_engine()
        except NotAnswered:
            if app.dry_run:
                with app.checking("engine"):
                    app.dry.first.extend(f"an engine: {one}" for one in list_setup_steps())
            else:
                install_and_start_engine(app.say)
        ensure_image_built(app, target)

    def prepare(
        self, app: App, target: str, run_store: RunStore, gpus: str, need_gib: float | None = None
    ) -> PreparedDocker:
        """Return the engine, the image and the GPUs, all checked, and the data disk."""
        image = load_image_plan(app.project, target)
        if self.is_local:
            create_or_check_data_disk(app, run_store.data_dir, image.container, need_gib)
        found: Mapping[str, Any] = {"Id": "IMAGE"}
        with app.checking("image"):
            found = found if image.tag in app.dry.made else _check_image(app, image)
        bytecode = Path("cache/bytecode", target, str(found["Id"]).rpartition(":")[2][:16])
        with app.checking("devices"):
            require_devices(app, image.container)
        access = choose_container_gpus(app, image, gpus)
        with app.checking("GPUs"):
            require_usable_gpus(app, image, gpus, access, parse_image_environment(found))
        with app.checking("network"):
            image = dataclasses.replace(image, container=connect_engine().replace_unavailable_network(image.container))
        return PreparedDocker(
            target=target, run_store=run_store, image=image, bytecode=bytecode, gpus=gpus, access=access, say=app.say
        )

    def run_rlbox(self, app: App, target: str, words: tuple[str, ...], data: str | None, gpus: str) -> int:
        """Carry out `rlbox WORDS` in a container of its own."""
        return open_shell(app, target, ("/opt/rlbox/bin/rlbox", *words), data, gpus)

    def open_runtime(self, note: ContainerRef) -> RunContainer:
        """Return the container of a run, on the engine that it was made on."""
        from rlbox.engine.docker import DockerEngine

        return RunContainer(engine=DockerEngine.connect(note.engine), note=note)

    def find_container(self, plan: RunPlan, data: Path) -> ContainerRef | None:
        """Return the note of the container whose labels and mounts say that it is that of the run."""
        from rlbox.engine.docker import DockerEngine

        for found in DockerEngine.connect().list_containers(f"{RUN_LABEL}={plan.run_id}"):
            names = found.get("Names") or ()  # null for a container that is just being made or removed
            if names and any(mount.get("Source") == str(data) for mount in found.get("Mounts") or ()):
                name = names[0].removeprefix("/")
                return ContainerRef(run=plan.run_id, name=name, engine=open_engine_connection_address(), place=_NAME)
        return None


BACKEND: Backend = DockerBackend()


@dataclass(frozen=True, kw_only=True)
class RunContainer:
    """The container that carries out a run, as its engine knows it; only one with the labels of that run is."""

    engine: DockerEngine
    note: ContainerRef

    def status(self) -> RuntimeStatus:
        """Whether it was made and not started yet, lives, has ended, or is gone."""
        found = self.engine.inspect_container(self.note.name)
        if found is None or found.labels.get(RUN_LABEL) != self.note.run:
            return "gone"
        status = found.status
        return "made" if status == "created" else "living" if status in ACTIVE_STATES else "ended"

    def exit_info(self) -> ExitInfo | None:
        """What its exit code, its output and the engine's flags say."""
        ended = self.engine.read_container_exit(self.note.name)
        if ended is None:
            return None
        word = make_container_exit_info(
            self.note.name, ended.exit_code, out_of_memory=ended.out_of_memory, note=ended.output
        )
        again = self.note.started and self.note.started != ended.started_at
        return dataclasses.replace(word, kind="again") if again else word

    def stop(self, grace_s: int) -> None:
        """Have the engine ask it to end, and end it after `grace_s` seconds."""
        if self._ours():
            self.engine.stop_container(self.note.name, grace_s)

    def remove(self) -> None:
        """Have the engine remove it."""
        if self._ours():
            self.engine.remove_container(self.note.name)

    def _ours(self) -> bool:
        """Whether it is there and of the run; `NodeError` when it is another user's."""
        found = self.engine.inspect_container(self.note.name)
        if found is None or found.labels.get(RUN_LABEL) != self.note.run:
            return False
        owner, me = found.labels.get(OWNER_LABEL, "?"), format_user_ids().partition(":")[0]
        if owner != me and me != "0":
            what = _("container {note} of the run belongs to another user (uid {owner})").format(
                note=self.note.name, owner=owner
            )
            raise NodeError(what, next_step=_("ask that user, or do it as root"))
        return True


@dataclass(frozen=True, kw_only=True)
class PreparedDocker:
    """The image and engine for runs of a target; `bytecode` is relative to the data disk, `gpus` is what was asked.

    `made_from` is what the engine calls the image where that is not by its tag, `env` and `labels` what its containers
    get besides.
    One that is not `near` is only shown.
    """

    target: str
    run_store: RunStore
    image: ImagePlan
    bytecode: Path
    say: Callable[[str], None]
    gpus: str = ""
    access: GpuAccess = NO_GPUS
    place: str = _NAME
    made_from: str = ""
    is_local: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def network(self) -> str:
        """That of the container."""
        return self.image.container.network

    @property
    def shares_host_ports(self) -> bool:
        """Whether it is that of this machine; elsewhere only the supervisor can look at ports."""
        return self.is_local and self.network == "host" and is_engine_local()

    def plan_run(self, job: Job, values: ParamValues, run_id: str, secrets: tuple[str, ...]) -> RunPlan:
        """Return the plan of a new run."""
        mount = self.image.container.mount
        plan = plan_container_run(job, values, mount, run_id, self.place, self.target, secrets)
        env = {BYTECODE: f"{mount}/{self.bytecode}", **plan.env}
        return dataclasses.replace(plan, env=env, container=f"rlbox-{run_id}", gpus=self.gpus)

    def prepare_run(self, plan: RunPlan, run_dir: Path, secrets: Mapping[str, Secret]) -> PreparedRun:
        """Return the run, ready to start."""
        # what was compiled for other images of the target
        compiled = (self.run_store.data_dir / self.bytecode).parent
        for name in list_directory(compiled):
            if name != self.bytecode.name:
                remove_tree(compiled / name)
        tree = plan.paths.source
        container = plan_container(
            self.made_from or self.image.tag,
            self.image.container,
            name=plan.container,
            argv=("/opt/rlbox/bin/python", "-m", "rlbox.supervise", plan.paths.run),
            env={**self.env, **({SECRETS_VARIABLE: ",".join(secrets)} if secrets else {})},
            labels={
                **self.labels,
                TARGET_LABEL: self.target,
                RUN_LABEL: plan.run_id,
                OWNER_LABEL: format_user_ids().partition(":")[0],
            },
            data_dir=str(self.run_store.data_dir),
            caller_uid_gid=format_user_ids(),
            ca_bundle=find_ca_bundle() if is_engine_local() else "",
            gpus=self.access,
            init=False,  # the supervisor is process 1, which nothing in the container can kill
            mounts=(Mount(source=str(plan.params[SOURCE_PARAM]), target=tree, read_only=True),) if tree else (),
        )
        return PreparedRun(
            plan=plan, run_dir=run_dir, start=lambda hold: self._begin(plan, run_dir, container, secrets)
        )

    def _begin(
        self, plan: RunPlan, run_dir: Path, container: ContainerPlan, secrets: Mapping[str, Secret]
    ) -> Callable[[], bool]:
        """Make and start the container; the supervisor in it takes the disk once it is let go of here.

        It stays after its end until somebody has settled it.
        """
        note = ContainerRef(
            run=plan.run_id, name=plan.container, engine=open_engine_connection_address(), place=self.place
        )
        asked = connect_engine()
        self._start(asked, note, plan, run_dir, container, secrets)
        # it runs: a disk that is full is for its supervisor to tell, and an engine that is gone for who follows
        with contextlib.suppress(OSError, EngineError):
            found = asked.inspect_container(plan.container)
            self.run_store.write_ref(dataclasses.replace(note, started=found.started_at if found else "unknown"))
        return lambda: asked.is_container_active(plan.container)

    def _start(
        self,
        asked: DockerEngine,
        note: ContainerRef,
        plan: RunPlan,
        run_dir: Path,
        container: ContainerPlan,
        secrets: Mapping[str, Secret],
    ) -> None:
        """Start the container; a port that is taken on the engine's machine, as by another run, is not published."""
        from rlbox.engine.docker import PortTakenError

        while True:
            self.run_store.write_ref(note, plan)
            try:
                asked.start_container(
                    dataclasses.replace(container, published_ports=tuple(plan.published.values())), secrets
                )
                break
            except PortTakenError as error:
                plan, lost = drop_taken_ports(plan, error.ports)
                write_plan(run_dir, plan)
                for text in lost:
                    self.say(text)
        for name, port in plan.published.items():
            self.say(f"port {name} is published: {LOOPBACK}:{port}")


def _check_image(app: App, image: ImagePlan) -> Mapping[str, Any]:
    """Return what the engine says of the target's image; `EngineError` when it is missing or outdated."""
    found = require_project_image(app, image)
    if why := find_outdated_reason(image, found):
        what = _("the image {tag} is out of date: {why}").format(tag=image.tag, why=why)
        raise EngineError(what, next_step=f"rlbox build {image.target}")
    return found
