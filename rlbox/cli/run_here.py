"""A run in place, for a machine that has no engine (or is a container itself): same stages, same gates."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from rlbox.act.disk import check_disk, data_folder
from rlbox.act.file_lock import hold
from rlbox.act.folders import cache_folder
from rlbox.act.run_folder import RUNS, make_run_folder, new_run_id
from rlbox.act.site import probe_site
from rlbox.act.uv import sync_environment
from rlbox.cli.app import App
from rlbox.cli.build_image import require_lock
from rlbox.cli.follow import check_ports, finish, follow, run_files
from rlbox.cli.run import programs
from rlbox.cli.run_docker import interruptible
from rlbox.errors import Interrupted
from rlbox.plan.params import Values
from rlbox.plan.run import Paths, plan_run
from rlbox.plan.sources import plan_sources
from rlbox.spec.job import Job


def run_here(app: App, job: Job, values: Values, target: str, data: str | None) -> int:
    """Run the job on this machine, in an environment made from the target's lock; return rlbox's exit code."""
    image = app.image_plan(target)
    require_lock(image)
    folder = data_folder(image.container, data)
    check_disk(folder, image.container.need_gib, create=image.container.create)
    site = probe_site()
    app.say(f"no container: the stages of {job.name} run in place on this machine")
    with hold(cache_folder("locks", f"environment-{target}.lock"), f"environment of {target}"):
        environment = cache_folder("environments", target)
        sources = plan_sources(image.torch_groups, site)
        python = sync_environment(environment, image, image.python, sources, site.ca_bundle)
    run_id = new_run_id(job.name)
    place = folder / RUNS / run_id
    paths = Paths(run=str(place), job=str(place / "job"), data=str(folder), python=str(python))
    plan = plan_run(job, values, paths, run_id=run_id, place="here", target=target)
    with hold(folder / ".rlbox-run.lock", f"run on data disk {folder}"):
        run_dir = make_run_folder(folder, plan, programs(app, job), run_files(app, job, target))
        app.say(f"run {run_id}: {run_dir}")
        check_ports(run_dir, plan)
        path = f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        env = {**os.environ, **image.env, "PATH": path}
        with interruptible() as stopped:
            with open(run_dir / "supervisor.log", "wb") as log:
                supervisor = subprocess.Popen(
                    [sys.executable, "-m", "rlbox.cli.supervise", str(run_dir)],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            follow(app, run_dir, lambda: not stopped() and supervisor.poll() is None)
            if stopped():
                app.say("stopping the run")
                supervisor.send_signal(signal.SIGTERM)
            code = supervisor.wait()
    note = (run_dir / "supervisor.log").read_text("utf-8", "replace")[-500:]
    result = finish(app, run_dir, plan, code, note, stopped=stopped())
    if stopped():
        raise Interrupted(f"run {run_id} was stopped; nothing of it is left running", where=str(run_dir))
    return result
