"""Run a stage's command as a job of a Ray cluster, through the dashboard's Jobs API.

Source: Ray 2.60 documentation, "Ray Jobs REST API"; the driver's log is `logs/job-driver-<id>.log` of the session.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.doctor.ray_state import create_ray_http_client_with_auth, fetch_or_find_job_or_latest_session_dir
from rlbox.job.plan import RayJobPlan
from rlbox.system.http import NoFullResponseError, describe_response_error
from rlbox.system.poller import Poller
from rlbox.system.safe_files import replace_file

PENDING, SUCCEEDED = "PENDING", "SUCCEEDED"
UNREACHABLE = "UNREACHABLE"
"""The dashboard does not answer; after `_LOST_S` that ends the job."""
REFUSED = "REFUSED"
"""The job was never taken."""

_ENDED = (SUCCEEDED, "FAILED", "STOPPED", REFUSED)
_PAUSE_S = 0.25
_TIMEOUT_S = 10.0
_SUBMIT_S = 60.0
_STOP_S = 3.0
_LOST_S = 30.0


@dataclass(frozen=True, kw_only=True)
class RayJobInfo:
    """`exit_code` is that of the driver, None when it never ran or Ray does not know."""

    status: str
    exit_code: int | None = None
    message: str = ""


class SubmittedRayJob:
    def __init__(self, plan: RayJobPlan, argv: tuple[str, ...], env: Mapping[str, str], shell_prefix: str = "") -> None:
        self._plan = plan
        self._submission: RayJobInfo | None = None
        self._body = {
            "entrypoint": shell_prefix + shlex.join(argv),
            "submission_id": plan.submission_id,
            "runtime_env": {"env_vars": dict(env)},
        }
        self._poller = Poller(self._ask, _PAUSE_S, lambda facts: facts.status in _ENDED)

    @property
    def last_polled_info(self) -> RayJobInfo:
        return self._poller.latest or RayJobInfo(status=PENDING)

    def poll(self) -> int | None:
        """Return how the job ended, as an exit code (the driver's where Ray knows it), or None while it goes on."""
        facts = self.last_polled_info
        if facts.status == UNREACHABLE and time.monotonic() - self._poller.changed_at > _LOST_S:
            return 1
        if facts.status not in _ENDED:
            return None
        if facts.exit_code is not None:
            return facts.exit_code
        return 0 if facts.status == SUCCEEDED else 1

    def stop(self) -> None:
        """Ask Ray to stop the job, for a few seconds; the end of the head ends it in any case."""
        self._poller.request_stop()
        if self.last_polled_info.status in _ENDED:
            return
        with contextlib.suppress(NoFullResponseError), create_ray_http_client_with_auth(_STOP_S) as http:
            http.request("POST", f"{_jobs(self._plan)}{self._plan.submission_id}/stop")
            until = time.monotonic() + _STOP_S
            while time.monotonic() < until and _query_job(self._plan, _STOP_S).status not in _ENDED:
                time.sleep(_PAUSE_S)

    def _ask(self) -> RayJobInfo:
        if self._submission is None:
            self._submission = _submit(self._plan, self._body)
            return self._submission
        return _query_job(self._plan)


def find_driver_log_path(plan: RayJobPlan) -> Path:
    return fetch_or_find_job_or_latest_session_dir(plan) / "logs" / f"job-driver-{plan.submission_id}.log"


def write_secrets_and_get_exec_prefix(file: Path, secrets: Mapping[str, str]) -> str:
    """Write a job's secrets where its command reads and removes them; return the line of shell that does.

    Ray would write what `runtime_env` holds into its logs.
    """
    if not secrets:
        return ""
    text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in secrets.items())
    replace_file(file, text.encode(), mode=0o600)
    name = shlex.quote(str(file))
    return f". {name} && rm -f {name} && exec "


def _query_job(plan: RayJobPlan, timeout_s: float = _TIMEOUT_S) -> RayJobInfo:
    try:
        with create_ray_http_client_with_auth(timeout_s) as http:
            answer = http.request("GET", _jobs(plan) + plan.submission_id)
            data: dict[str, Any] = answer.read_json()
    except (NoFullResponseError, ValueError) as error:
        return RayJobInfo(status=UNREACHABLE, message=describe_response_error(error))
    if answer.status != 200:
        return RayJobInfo(status=UNREACHABLE, message=f"HTTP {answer.status}")
    code = data.get("driver_exit_code")
    return RayJobInfo(
        status=str(data.get("status")),
        exit_code=code if isinstance(code, int) else None,
        message=str(data.get("message") or ""),
    )


def _submit(plan: RayJobPlan, body: Mapping[str, Any]) -> RayJobInfo:
    headers = {"Content-Type": "application/json"}
    try:
        with create_ray_http_client_with_auth(_SUBMIT_S) as http:
            answer = http.request("POST", _jobs(plan), headers=headers, body=json.dumps(body).encode())
    except NoFullResponseError as error:
        return RayJobInfo(status=REFUSED, message=describe_response_error(error))
    if answer.status != 200:
        lines = answer.read_body().decode("utf-8", "replace").strip().splitlines()
        return RayJobInfo(status=REFUSED, message=f"HTTP {answer.status}: {lines[-1] if lines else ''}")
    return RayJobInfo(status=PENDING)


def _jobs(plan: RayJobPlan) -> str:
    return f"{plan.dashboard.rstrip('/')}/api/jobs/"
