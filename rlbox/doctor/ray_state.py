"""What a Ray head says of its cluster while it is still up.

Source: Ray 2.60, dashboard: `/api/version`, `/nodes?view=summary`, `/api/jobs/`, and the state API `/api/v0/actors`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlbox.errors import MachineError
from rlbox.i18n import _
from rlbox.job.plan import RayJobPlan
from rlbox.system.http import HttpClient, NoFullResponseError, create_loopback_client, describe_response_error

_TIMEOUT_S = 1.5
_SUMMARY = "/nodes?view=summary"
_ROWS = 50
_TEXT = 2000
_NODE = ("nodeManagerAddress", "nodeManagerHostname", "state", "isHeadNode", "resourcesTotal", "stateMessage")
_JOB = ("submission_id", "job_id", "status", "message", "error_type", "driver_exit_code", "start_time", "end_time")
_ACTOR = ("actor_id", "class_name", "name", "state", "pid", "node_id", "death_cause")


def fetch_ray_state_or_error(plan: RayJobPlan) -> dict[str, Any]:
    """Return `version`, `jobs`, `nodes` and `dead_actors` as the head tells them; `error` when it does not answer."""
    facts: dict[str, Any] = {"dashboard": plan.dashboard}
    base = plan.dashboard.rstrip("/")
    readers: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "version": ("/api/version", lambda data: data.get("ray_version", "")),
        "jobs": ("/api/jobs/", lambda data: [_select(row, _JOB) for row in data[-_ROWS:]]),
        "nodes": (_SUMMARY, _read_nodes),
        "dead_actors": ("/api/v0/actors?limit=1000&detail=true", _read_dead_actors),
    }
    try:
        with create_ray_http_client_with_auth(_TIMEOUT_S) as http:
            for key, (path, read) in readers.items():
                facts[key] = _fetch(http, f"{base}{path}", read)
    except NoFullResponseError as error:
        facts["error"] = describe_response_error(error)
    return facts


def fetch_ray_nodes(dashboard: str) -> list[dict[str, Any]]:
    """Return the nodes that the head behind a dashboard knows; `MachineError` when it does not tell."""
    try:
        with create_ray_http_client_with_auth(_TIMEOUT_S) as http:
            nodes = _fetch(http, dashboard.rstrip("/") + _SUMMARY, _read_nodes)
    except NoFullResponseError as error:
        raise MachineError(_("no head answers at {dashboard}").format(dashboard=dashboard)) from error
    if isinstance(nodes, str):
        raise MachineError(nodes)
    return list(nodes)


def _fetch(http: HttpClient, url: str, read: Callable[[Any], Any]) -> Any:
    """Return what `read` takes of an answer, or a sentence where it is another than Ray's."""
    try:
        return read(http.request("GET", url).read_json())
    except NoFullResponseError as error:
        if error.kind != "cut":
            raise  # nobody is there, or it hangs: the other questions need not wait for it too
        return _("not told: {explain_no_response}").format(explain_no_response=describe_response_error(error))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return _("not told: {name}: {error}").format(name=type(error).__name__, error=error)


def _read_nodes(data: Any) -> list[dict[str, Any]]:
    return [_select({**row, **row.get("raylet", {})}, _NODE) for row in data["data"]["summary"]]


def _read_dead_actors(data: Any) -> list[dict[str, Any]]:
    rows = data["data"]["result"]["result"]
    return [_select(row, _ACTOR) for row in rows if row.get("state") == "DEAD"][:_ROWS]


def _select(row: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: row[name] for name in names if row.get(name) not in (None, "")}
    return {name: value[:_TEXT] if isinstance(value, str) else value for name, value in values.items()}


def _get_latest_session_dir(temp_dir: str) -> Path:
    """Return the folder of the latest session in a head's folder of temporary files.

    The link to it names it as the head's own container sees it; it lies beside the link.
    """
    name = "session_latest"
    with contextlib.suppress(OSError):
        name = Path(os.readlink(Path(temp_dir, name))).name
    return Path(temp_dir, name)


def fetch_or_find_job_or_latest_session_dir(plan: RayJobPlan) -> Path:
    """Return the folder of the session of a job's head, as it tells; where it ended, of the head that ran the job.

    Of several heads on a machine each process moves the link to the latest. Source: Ray 2.43 to 2.60, `/api/version`.
    """
    with (
        contextlib.suppress(NoFullResponseError, ValueError, AttributeError),
        create_ray_http_client_with_auth(_TIMEOUT_S) as http,
    ):
        told = http.request("GET", f"{plan.dashboard.rstrip('/')}/api/version").read_json().get("session_name")
        if told and (folder := Path(plan.temp_dir, Path(told).name)).is_dir():
            return folder
    drivers = sorted(Path(plan.temp_dir).glob(f"session_*/logs/job-driver-{plan.submission_id}.log"))
    return drivers[-1].parents[1] if drivers else _get_latest_session_dir(plan.temp_dir)


def create_ray_http_client_with_auth(idle_timeout_s: float) -> HttpClient:
    return create_loopback_client(idle_timeout_s, read_ray_auth_headers_or_empty(os.environ))


def read_ray_auth_headers_or_empty(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the header by which a cluster with token authentication takes a request; none when there is no token.

    Source: Ray 2.60, `ray._private.authentication`: RAY_AUTH_TOKEN, then RAY_AUTH_TOKEN_PATH, then ~/.ray/auth_token.
    Without RAY_AUTH_MODE a head asks for the token that is there, and any `ray.init()` leaves one in the home folder.
    """
    if environ.get("RAY_AUTH_MODE", "token") != "token":
        return {}
    token = environ.get("RAY_AUTH_TOKEN", "")
    if not token:
        path = environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token")
        with contextlib.suppress(OSError):
            token = Path(path).read_text("utf-8").strip()
    return {"Authorization": f"Bearer {token}"} if token else {}
