"""`python -m rlbox.vast FOLDER`: keep the job of a rented instance going, and take it up again after a stop.

It runs on the instance, once at a time; every start of the instance starts it.
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
from rlbox.i18n import _
from rlbox.record.state import find_run_cause, load_run_state
from rlbox.system.command import run_command
from rlbox.system.file_lock import open_lock_unless_held
from rlbox.system.files import write_atomic
from rlbox.values import Command
from rlbox.vast.api import request_instance_state
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
_KEY, _ID = "CONTAINER_API_KEY", "CONTAINER_ID"
"""What the platform gives each instance: a key for itself alone, and its number. Source: vast-ai/docs, environment."""


def run_job_agent_until_end_then_stop_if_asked(job_dir: Path) -> int:
    """Carry out the job of `job_dir` until its run has ended; return the run's exit code, 0 where another one keeps."""
    handle = open_lock_unless_held(job_dir / "lock", create_else_raise=True)  # held until this process ends
    if handle is None:
        return 0
    job = parse_remote_job((job_dir / JOB_FILE).read_text("utf-8"))
    ended, run_file = job_dir / ENDED_FILE, job_dir / RUN_FILE
    earlier_end = ended.read_text("utf-8") if ended.exists() else ""
    ended.unlink(missing_ok=True)
    try:
        facts = _follow_run_to_end(_start_or_resume_run(job_dir, job))
    except RlboxError as error:
        _say(str(error))
        if not run_file.exists():  # it never ran: who types `vast up` is told, and mends it
            write_atomic(job_dir / REFUSED_FILE, f"{error}\n")
            return error.exit_code
        run = run_file.read_text("utf-8").strip()
        facts = {"run": run, "job": job.job, "state": "refused", "exit_code": error.exit_code, "cause": error.what}
    end = json.dumps(facts)
    _say(end)
    write_atomic(ended, end)
    # with the same end as before, the instance was started again to look at it
    if job.then == "stop" and end != earlier_end:
        _wait_for_followers(job_dir / FOLLOWED_FILE)
        _stop_instance()
    return int(facts["exit_code"] or 0)


def _wait_for_followers(touched: Path) -> None:
    while touched.exists() and time.time() - touched.stat().st_mtime < FOLLOWER_TIMEOUT_S:
        time.sleep(_POLL_S)


def _start_or_resume_run(folder: Path, job: RemoteJob) -> Path:
    run_file, all_runs = folder / RUN_FILE, Path(job.disk) / "runs"
    runs = [str(row["run"]) for row in _run_rlbox("runs", "--data", job.disk)["runs"]]  # which settles dead ones
    if not run_file.exists():
        begun = (folder / JOB_FILE).stat().st_mtime
        own = [run for run in runs if run.startswith(f"{job.job}-") and (all_runs / run).stat().st_ctime >= begun]
        if own:
            write_atomic(run_file, f"{own[0]}\n")  # killed before it was noted
    run = run_file.read_text("utf-8").strip() if run_file.exists() else ""
    project = ("--project", str(folder / PROJECT_DIRECTORY)) if (folder / PROJECT_DIRECTORY).is_dir() else ()
    options = ("--data", job.disk, "--detach", *project)
    if run not in runs:
        run = str(_run_rlbox("run", job.job, "--place", "here", *options, *job.words)["run"])
        write_atomic(run_file, f"{run}\n")
        _say(f"run {run} is started")
        return all_runs / run
    state = load_run_state(all_runs / run)
    cause = find_run_cause(state)
    if state.state == "failed" and cause and cause.kind == "lost":
        _say(f"run {run} was cut ({cause.what}), and goes on")
        _run_rlbox("run", "--resume", run, *options)
    return all_runs / run


def _run_rlbox(*words: str) -> Mapping[str, Any]:
    """Return what a command line of rlbox says as JSON; if it fails, `WorkFailed` with its error and next step."""
    outcome = run_command(Command(argv=(sys.executable, "-m", "rlbox", *words, "--json")))
    try:
        data = json.loads(outcome.stdout)
    except ValueError:  # it came to no end of its own
        data = {}
    if not outcome.ok:
        error = data.get("error") or {"what": outcome.stderr.strip()}
        what = _("rlbox {words}: {what}").format(words=" ".join(words[:2]), what=error["what"])
        raise WorkFailed(what, where=str(error.get("where", "")), next_step=str(error.get("next", "")))
    return data  # type: ignore[no-any-return]


def _follow_run_to_end(run_dir: Path) -> dict[str, Any]:
    while (state := load_run_state(run_dir)).state not in ("passed", "failed", "interrupted"):
        time.sleep(_POLL_S)
    cause = find_run_cause(state)
    return {
        "run": state.run_id,
        "job": state.job,
        "state": state.state,
        "exit_code": state.exit_code,
        "cause": cause.what if cause else "",
    }


def _stop_instance() -> None:
    """Ask the platform to stop this instance, so that it costs no more than its disk."""
    try:
        request_instance_state(int(os.environ.get(_ID, "")), "stopped", api_key=os.environ.get(_KEY, ""))
    except (RlboxError, ValueError) as error:
        _say(f"this instance is not stopped: {error}")
    else:
        _say("this instance stops")


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(run_job_agent_until_end_then_stop_if_asked(Path(sys.argv[1])))
