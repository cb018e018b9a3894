"""A run in a container: checked first, then started; the container's process is the supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.app import App
from rlbox.engine.act.address import engine_address, engine_is_here
from rlbox.engine.act.api import find_image
from rlbox.engine.act.data_disk import check_disk, data_folder
from rlbox.engine.act.docker import DockerEngine
from rlbox.engine.container import OWNER_LABEL, RUN_LABEL, TARGET_LABEL, ContainerPlan, plan_container
from rlbox.engine.gpu_access import NO_GPUS, GpuAccess
from rlbox.errors import EngineError
from rlbox.host.gpu_choice import check_gpus, choose_gpus, image_env, wished
from rlbox.image.act.digest import outdated
from rlbox.image.act.plans import image_plan
from rlbox.image.plan import ImagePlan
from rlbox.job.job import Job
from rlbox.job.params import Values
from rlbox.job.plan import RunPlan
from rlbox.machine.act.identity import caller
from rlbox.machine.act.site import site_ca
from rlbox.record.act.container_note import ContainerNote, write_note
from rlbox.record.act.disk_lock import DiskLock
from rlbox.run.follow import check_ports
from rlbox.run.launch import Wanted, container_plan
from rlbox.run.remote import go_over
from rlbox.run.start import start_new
from rlbox.secrets.masks import SECRETS_VARIABLE
from rlbox.values import Secret

# The image holds no bytecode, which would be a sixth of it: the first run on a disk compiles what it imports. Time
# stamps in an image are all alike, so the folder is named after the image.
BYTECODE = "PYTHONPYCACHEPREFIX"


def run_docker(app: App, job: Job, values: Values, target: str, data: str | None, wanted: Wanted) -> int:
    """Run the job in a container of the target's image and return rlbox's exit code."""
    go_over(app, target, data, {name: secret.reveal() for name, secret in wanted.secrets.items()})
    return start_new(app, docker_site(app, target, data, wished(wanted.gpus)), job, values, wanted)


def docker_site(app: App, target: str, data: str | None, gpus: str) -> DockerSite:
    """Return the engine, the image, the GPUs and the data disk that runs of `target` take place on, all checked.

    Parameters
    ----------
    gpus
        What `--gpus` says, empty for the target's own number.
    """
    image = image_plan(app.project, target)
    folder = data_folder(image.container, data)
    check_disk(folder, image.container.need_gib, create=image.container.create)
    found = _check_image(image)
    bytecode = Path("cache/bytecode", target, str(found["Id"]).rpartition(":")[2][:16])
    access = choose_gpus(app, image, gpus)
    check_gpus(app, image, access, image_env(found))
    engine = DockerEngine.connect()
    return DockerSite(
        target=target, folder=folder, image=image, bytecode=bytecode, engine=engine, gpus=gpus, access=access
    )


@dataclass(frozen=True, kw_only=True)
class DockerSite:
    """Where runs of a target take place; `bytecode` is relative to the data disk `folder`, `gpus` is what was asked."""

    target: str
    folder: Path
    image: ImagePlan
    bytecode: Path
    engine: DockerEngine
    gpus: str = ""
    access: GpuAccess = NO_GPUS

    def plan(self, job: Job, values: Values, run_id: str, secrets: tuple[str, ...]) -> RunPlan:
        """Return the plan of a new run."""
        mount = self.image.container.mount
        plan = container_plan(job, values, mount, run_id, self.target, secrets)
        env = {BYTECODE: f"{mount}/{self.bytecode}", **plan.env}
        return dataclasses.replace(plan, env=env, container=f"rlbox-{run_id}", gpus=self.gpus)

    def start(self, plan: RunPlan, run_dir: Path, secrets: Mapping[str, Secret]) -> DockerStart:
        """Return the run, ready to start."""
        for path in (self.folder / self.bytecode).parent.glob("*"):  # what was compiled for other images of the target
            if path.name != self.bytecode.name:
                shutil.rmtree(path, ignore_errors=True)
        container = plan_container(
            self.image.tag,
            self.image.container,
            name=plan.container,
            argv=("/opt/rlbox/bin/python", "-m", "rlbox.supervise", plan.paths.run),
            env={SECRETS_VARIABLE: ",".join(secrets)} if secrets else {},
            labels={TARGET_LABEL: self.target, RUN_LABEL: plan.run_id, OWNER_LABEL: caller().partition(":")[0]},
            data=str(self.folder),
            caller=caller(),
            ca_bundle=site_ca() if engine_is_here() else "",
            gpus=self.access,
        )
        if container.network == "host" and engine_is_here():  # elsewhere only the supervisor can
            check_ports(run_dir, plan)
        return DockerStart(plan=plan, run_dir=run_dir, site=self, container=container, secrets=secrets)


@dataclass(kw_only=True)
class DockerStart:
    """One run in a container of its own; it stays after its end until somebody has settled it."""

    plan: RunPlan
    run_dir: Path
    site: DockerSite
    container: ContainerPlan
    secrets: Mapping[str, Secret]

    def begin(self, lock: DiskLock) -> None:
        """Make and start the container; the supervisor in it takes the lock once it is let go of here."""
        note = ContainerNote(run=self.plan.run_id, name=self.plan.container, engine=engine_address())
        write_note(self.site.folder, note)
        self.site.engine.start(self.container, self.secrets)
        with contextlib.suppress(OSError):  # it runs; a disk that is full now is for its supervisor to tell
            write_note(self.site.folder, dataclasses.replace(note, started=True))

    def alive(self) -> bool:
        """Whether the container still runs."""
        return self.site.engine.running(self.plan.container)


def _check_image(image: ImagePlan) -> Mapping[str, Any]:
    """Return what the engine says of the target's image; `EngineError` when it is missing or outdated."""
    found = find_image(image.tag)
    if found is None:
        raise EngineError(f"the engine has no image {image.tag}", next_step=f"rlbox build {image.target}")
    if why := outdated(image, found):
        what = f"the image {image.tag} is not what its specs say now: {why}"
        raise EngineError(what, next_step=f"rlbox build {image.target}")
    return found
