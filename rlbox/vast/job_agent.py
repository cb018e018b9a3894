"""What keeps a job going on a rented instance: starts its run, takes it up again after a stop.

It runs on the instance (`python -m rlbox.vast FOLDER`), once at a time; every start of the instance starts it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbox.errors import RlboxError, WorkFailed
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.record.state import RunState, find_run_cause, load_run_state
from rlbox.system.command import run_command
from rlbox.system.file_lock import open_lock_unless_held
from rlbox.system.files import write_atomic
from rlbox.values import Command
from rlbox.vast.api import set_instance_state
from rlbox.vast.remote_job import (
    ENDED_FILE,
    FOLLOWED_FILE,
    FOLLOWER_TIMEOUT_S,
    JOB_FILE,
    PROJECT_DIRECTORY,
    REFUSED_FILE,
    RUN_FILE,
    RemoteJob,
    parse_remote_job,
)

_POLL_S = 2.0
_ENDED = ("passed", "failed", "interrupted")
_KEY, _ID = "CONTAINER_API_KEY", "CONTAINER_ID"
"""What the platform gives each instance: a key for itself alone, and its number. Source: vast-ai/docs, environment."""


def run_agent(folder: Path) -> int:
    """Carry out the job of `folder` until its run has ended; return the run's exit code, 0 where another one keeps."""
    handle = open_lock_unless_held(folder / "lock", create_else_raise=True)  # held until this process ends
    if handle is None:
        return 0
    try:
        job = parse_remote_job((folder / JOB_FILE).read_text("utf-8"))
    except RlboxError as error:
        _say(str(error))
        return error.exit_code
    told = folder / "told"
    (folder / ENDED_FILE).unlink(missing_ok=True)
    try:
        run_dir = _run_dir(folder, job)
        state = _follow(run_dir)
        cause = find_run_cause(state)
        facts = {
            "run": state.run_id,
            "job": state.job,
            "state": state.state,
            "exit_code": state.exit_code,
            "cause": cause.what if cause else "",
        }
        write_atomic(folder / ENDED_FILE, json.dumps(facts))
        end = f"{state.run_id} {state.attempt}\n"
        if told.exists() and told.read_text("utf-8") == end:  # the instance was started again to look at it
            return state.exit_code or 0
        write_atomic(told, end)
    except RlboxError as error:
        _say(str(error))
        if not (folder / RUN_FILE).exists():  # it never ran: who types `vast up` is told, and mends it
            write_atomic(folder / REFUSED_FILE, f"{error}\n")
            return error.exit_code
        code = error.exit_code
        refused = {"job": job.job, "state": "refused", "exit_code": code, "cause": error.what}
        write_atomic(
            folder / ENDED_FILE, json.dumps({"run": (folder / RUN_FILE).read_text("utf-8").strip(), **refused})
        )
    else:
        _say(json.dumps(facts))
        code = state.exit_code or 0
    if job.then == "stop":
        _wait_followers(folder / FOLLOWED_FILE)
        _stop()
    return code


def _wait_followers(touched: Path) -> None:
    """Wait while a client that follows the run still fetches what it made."""
    while touched.exists() and time.time() - touched.stat().st_mtime < FOLLOWER_TIMEOUT_S:
        time.sleep(_POLL_S)


def _run_dir(folder: Path, job: RemoteJob) -> Path:
    """Return the directory of the run, which goes on, has ended by itself, or is started now."""
    noted = folder / RUN_FILE
    runs = [str(row["run"]) for row in _rlbox("runs", "--data", job.disk)["runs"]]  # which settles dead ones
    if not noted.exists() and (begun := [run for run in runs if _is_of(Path(job.disk) / "runs" / run, folder, job)]):
        write_atomic(noted, f"{begun[0]}\n")  # killed before it was noted
    run_dir = Path(job.disk) / "runs" / noted.read_text("utf-8").strip() if noted.exists() else None
    project = ("--project", str(folder / PROJECT_DIRECTORY)) if (folder / PROJECT_DIRECTORY).is_dir() else ()
    beside = ("--data", job.disk, "--detach", *project)
    if run_dir is None or run_dir.name not in runs:
        told = _rlbox("run", job.job, "--place", "here", *beside, *job.words)
        write_atomic(noted, f"{told['run']}\n")
        _say(f"run {told['run']} is started")
        return Path(job.disk) / "runs" / str(told["run"])
    state = load_run_state(run_dir)
    cause = find_run_cause(state)
    if state.state == "failed" and cause and cause.kind == "lost":
        _say(f"run {run_dir.name} was cut ({cause.what}), and goes on")
        _rlbox("run", "--resume", run_dir.name, *beside)
    return run_dir


def _is_of(run_dir: Path, folder: Path, job: RemoteJob) -> bool:
    """Whether a run was started for this job."""
    return run_dir.name.startswith(f"{job.job}-") and run_dir.stat().st_ctime >= (folder / JOB_FILE).stat().st_mtime


def _rlbox(*words: str) -> Mapping[str, Any]:
    """Return what a command line of rlbox says as JSON; if it fails, `WorkFailed` with its error and next step."""
    done = run_command(Command(argv=(sys.executable, "-m", "rlbox", *words, "--json")))
    try:
        told = parse_json(done.stdout)
    except ValueError:  # it came to no end of its own
        told = None
    told = told if isinstance(told, dict) else {}
    if not done.ok:
        error = told.get("error") or {"what": done.stderr.strip()}
        what = _("rlbox {words}: {what}").format(words=" ".join(words[:2]), what=error["what"])
        raise WorkFailed(what, where=str(error.get("where", "")), next_step=str(error.get("next", "")))
    return told


def _follow(run_dir: Path) -> RunState:
    """Return the state of the run at its end."""
    while True:
        state = load_run_state(run_dir)
        if state.state in _ENDED:
            return state
        time.sleep(_POLL_S)


def _stop() -> None:
    """Ask the platform to stop this instance, so that it costs no more than its disk."""
    number = os.environ.get(_ID, "")
    if not number.isdecimal():
        _say(f"this instance is not stopped: {_ID} is not its number")
        return
    try:
        set_instance_state(int(number), "stopped", api_key=os.environ.get(_KEY, ""))
    except RlboxError as error:
        _say(f"this instance is not stopped: {error}")
    else:
        _say("this instance stops")


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")
    sys.stdout.flush()
