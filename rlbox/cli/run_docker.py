"""A run in a container: checked first, started, followed to its end, removed."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rlbox.act.disk import check_disk, data_folder
from rlbox.act.docker_engine import DockerEngine
from rlbox.act.engine_api import engine_is_here, find_image
from rlbox.act.file_lock import hold
from rlbox.act.run_folder import make_run_folder, new_run_id
from rlbox.act.site import site_ca
from rlbox.cli.app import App
from rlbox.cli.build_image import is_current
from rlbox.cli.follow import check_ports, finish, follow, run_files
from rlbox.cli.run import caller, container_plan, programs
from rlbox.errors import EngineError, Interrupted
from rlbox.plan.container import OWNER_LABEL, RUN_LABEL, TARGET_LABEL, plan_container
from rlbox.plan.image import ImagePlan
from rlbox.plan.params import Values
from rlbox.spec.job import Job

# The image holds no bytecode, which would be a sixth of it: the first run on a disk compiles what it imports. Time
# stamps in an image are all alike, so the folder is named after the image.
BYTECODE = "PYTHONPYCACHEPREFIX"
GRACE_S = 20  # the supervisor ends a stage and its services within 12 s


def run_docker(app: App, job: Job, values: Values, target: str, data: str | None) -> int:
    """Run the job in a container of the target's image and return rlbox's exit code."""
    image = app.image_plan(target)
    folder = data_folder(image.container, data)
    check_disk(folder, image.container.need_gib, create=image.container.create)
    bytecode = Path("cache/bytecode", target, _check_image(image))
    engine = DockerEngine.connect()
    plan = container_plan(job, values, image.container.mount, new_run_id(job.name), target)
    plan = dataclasses.replace(plan, env={BYTECODE: f"{image.container.mount}/{bytecode}", **plan.env})
    container = plan_container(
        image.tag,
        image.container,
        name=f"rlbox-{plan.run_id}",
        argv=("/opt/rlbox/bin/python", "-m", "rlbox.cli.supervise", plan.paths.run),
        env={},
        labels={TARGET_LABEL: target, RUN_LABEL: plan.run_id, OWNER_LABEL: caller().partition(":")[0]},
        data=str(folder),
        caller=caller(),
        ca_bundle=site_ca() if engine_is_here() else "",
    )
    with hold(folder / ".rlbox-run.lock", f"run on data disk {folder}"):
        _forget_others(folder / bytecode)
        run_dir = make_run_folder(folder, plan, programs(app, job), run_files(app, job, target))
        app.say(f"run {plan.run_id}: {run_dir}")
        if container.network == "host" and engine_is_here():  # elsewhere only the supervisor can
            check_ports(run_dir, plan)
        with interruptible() as stopped:
            started = engine.start(container)
            try:
                follow(app, run_dir, lambda: not stopped() and engine.running(started))
                if stopped():
                    app.say("stopping the run")
                    engine.stop(started, GRACE_S)
                ended = engine.ended(started)
            finally:
                engine.remove(started)
    note = "the engine ended it for lack of memory" if ended.out_of_memory else ended.output
    code = finish(app, run_dir, plan, ended.exit_code, note, stopped=stopped())
    if stopped():
        raise Interrupted(f"run {plan.run_id} was stopped; nothing of it is left running", where=str(run_dir))
    return code


def _forget_others(bytecode: Path) -> None:
    """Remove what Python compiled for other images of the target."""
    for path in bytecode.parent.glob("*"):
        if path != bytecode:
            shutil.rmtree(path, ignore_errors=True)


def _check_image(image: ImagePlan) -> str:
    """Return a short name of the target's image; `EngineError` when it is missing or outdated."""
    found = find_image(image.tag)
    if found is None:
        raise EngineError(f"the engine has no image {image.tag}", next_step=f"rlbox build {image.target}")
    if not is_current(image, found):
        raise EngineError(
            f"the image {image.tag} is not what its specs say now", next_step=f"rlbox build {image.target}"
        )
    return str(found["Id"]).rpartition(":")[2][:16]


class _Stopped:
    """Whether Ctrl-C or SIGTERM came; it is asked between polls, so that no step is torn."""

    def __init__(self) -> None:
        self._since = 0.0

    def __call__(self) -> bool:
        return self._since > 0

    def note(self, number: int, frame: FrameType | None) -> None:
        self._since = self._since or time.monotonic()


@contextmanager
def interruptible() -> Iterator[_Stopped]:
    """Note Ctrl-C and SIGTERM instead of dying of them while the block runs."""
    stopped = _Stopped()
    before = {number: signal.signal(number, stopped.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, action in before.items():
            signal.signal(number, action)
