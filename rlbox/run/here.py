"""A run in place, for a machine that has no engine (or is a container itself): same stages, same gates."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlbox.app import App
from rlbox.engine.act.data_disk import check_disk, data_folder
from rlbox.image.act.plans import image_plan
from rlbox.job.job import Job
from rlbox.job.params import Values
from rlbox.job.plan import Paths, RunPlan, plan_run
from rlbox.lock.state import require_lock
from rlbox.place.act.bring import BroughtPlace, prepare_place
from rlbox.record.act.disk_lock import DiskLock
from rlbox.record.act.folder import RUNS
from rlbox.run.follow import check_ports
from rlbox.run.launch import Wanted
from rlbox.run.start import start_new
from rlbox.secrets.act.hand_over import send_secrets
from rlbox.secrets.masks import SECRETS_VARIABLE
from rlbox.supervise.warden import LOG_FILE
from rlbox.values import Secret


def run_here(app: App, job: Job, values: Values, target: str, data: str | None, wanted: Wanted) -> int:
    """Run the job on this machine, in an environment made from the target's lock; return rlbox's exit code."""
    return start_new(app, here_site(app, target, data), job, values, wanted)


def here_site(app: App, target: str, data: str | None) -> HereSite:
    """Return this machine as the place of runs of `target`, brought to its lock."""
    image = image_plan(app.project, target)
    require_lock(image.target, image.lock)
    folder = data_folder(image.container, data)
    check_disk(folder, image.container.need_gib, create=image.container.create)
    app.say("no container: the stages run in place on this machine")
    return HereSite(target=target, folder=folder, place=prepare_place(app, image, folder))


@dataclass(frozen=True, kw_only=True)
class HereSite:
    """Where runs of a target take place: the data disk `folder` and the prepared environment."""

    target: str
    folder: Path
    place: BroughtPlace

    def plan(self, job: Job, values: Values, run_id: str, secrets: tuple[str, ...]) -> RunPlan:
        """Return the plan of a new run."""
        run = self.folder / RUNS / run_id
        paths = Paths(run=str(run), job=str(run / "job"), data=str(self.folder), python=str(self.place.python))
        return plan_run(job, values, paths, run_id=run_id, place="here", target=self.target, secrets=secrets)

    def start(self, plan: RunPlan, run_dir: Path, secrets: Mapping[str, Secret]) -> HereStart:
        """Return the run, ready to start."""
        check_ports(run_dir, plan)
        return HereStart(plan=plan, run_dir=run_dir, place=self.place, secrets=secrets)


class HereStart:
    """One run in place: a session of its own that no terminal and no command line can take down."""

    def __init__(self, *, plan: RunPlan, run_dir: Path, place: BroughtPlace, secrets: Mapping[str, Secret]) -> None:
        self.plan = plan
        self.run_dir = run_dir
        self._place = place
        self._secrets = secrets
        self._warden: subprocess.Popen[bytes] | None = None

    def begin(self, lock: DiskLock) -> None:
        """Start the warden, which inherits the data disk's lock and starts the supervisor."""
        argv = [sys.executable, "-m", "rlbox.supervise", "--warden", str(self.run_dir), "--lock", str(lock.handle)]
        with open(self.run_dir / LOG_FILE, "ab") as log:
            self._warden = subprocess.Popen(
                [*self._place.words, *argv],
                env=self._env(),
                stdin=subprocess.PIPE if self._secrets else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock.handle,),
                start_new_session=True,
            )
        if self._warden.stdin:
            with contextlib.suppress(BrokenPipeError), self._warden.stdin as pipe:  # a warden that died tells why
                send_secrets(pipe.write, self._secrets)

    def _env(self) -> dict[str, str]:
        """Return the place's environment, and the names of the secrets to come: no hook takes them for missing."""
        known = self._place.env.get(SECRETS_VARIABLE, "")
        names = ",".join([*([known] if known else []), *self._secrets])
        return {**self._place.env, **({SECRETS_VARIABLE: names} if names else {})}

    def alive(self) -> bool:
        """Whether the warden is still there."""
        return self._warden is not None and self._warden.poll() is None
