"""What a Ray head says of its cluster while it is still up.

Source: Ray 2.60, dashboard: `/api/version`, `/nodes?view=summary`, `/api/jobs/`, and the state API `/api/v0/actors`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlbox.job.plan import RayPlan

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S = 1.5
_ROWS = 50
_TEXT = 2000
_NODE = ("nodeManagerAddress", "nodeManagerHostname", "state", "isHeadNode", "resourcesTotal", "stateMessage")
_JOB = ("submission_id", "job_id", "status", "message", "error_type", "driver_exit_code", "start_time", "end_time")
_ACTOR = ("actor_id", "class_name", "name", "state", "pid", "node_id", "death_cause")


def probe_ray(plan: RayPlan) -> dict[str, Any]:
    """Return `version`, `jobs`, `nodes` and `dead_actors` as the head tells them; `error` when it does not answer."""
    import httpx

    facts: dict[str, Any] = {"dashboard": plan.dashboard}
    try:
        with httpx.Client(
            base_url=plan.dashboard, trust_env=False, timeout=_TIMEOUT_S, headers=auth_headers(os.environ)
        ) as client:
            facts["version"] = _asked(client, "/api/version", lambda data: data.get("ray_version", ""))
            facts["jobs"] = _asked(client, "/api/jobs/", lambda data: [_short(row, _JOB) for row in data[-_ROWS:]])
            facts["nodes"] = _asked(client, "/nodes?view=summary", _nodes)
            facts["dead_actors"] = _asked(client, "/api/v0/actors?limit=1000&detail=true", _dead)
    except (httpx.ConnectError, httpx.TimeoutException) as error:
        facts["error"] = f"{type(error).__name__}: {error}"
    return facts


def probe_ray_nodes(dashboard: str) -> list[dict[str, Any]] | str:
    """Return the nodes that the head behind a dashboard knows; in words, why there is no answer."""
    import httpx

    headers = auth_headers(os.environ)
    try:
        with httpx.Client(base_url=dashboard, trust_env=False, timeout=_TIMEOUT_S, headers=headers) as client:
            found = _asked(client, "/nodes?view=summary", _nodes)
    except (httpx.ConnectError, httpx.TimeoutException):
        return f"no head answers at {dashboard}"
    return found if isinstance(found, list) else str(found)


def _asked(client: httpx.Client, path: str, read: Callable[[Any], Any]) -> Any:
    import httpx

    try:
        return read(client.get(path).json())
    except (httpx.ConnectError, httpx.TimeoutException):
        raise  # nobody is there, or it hangs: the other questions need not wait for it too
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"not told: {type(error).__name__}: {error}"


def _nodes(data: Any) -> list[dict[str, Any]]:
    return [_short({**row, **row.get("raylet", {})}, _NODE) for row in data["data"]["summary"]]


def _dead(data: Any) -> list[dict[str, Any]]:
    rows = data["data"]["result"]["result"]
    return [_short(row, _ACTOR) for row in rows if row.get("state") == "DEAD"][:_ROWS]


def _short(row: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    found = {name: row[name] for name in names if row.get(name) not in (None, "")}
    return {name: value[:_TEXT] if isinstance(value, str) else value for name, value in found.items()}


def auth_headers(environ: Mapping[str, str]) -> dict[str, str]:
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
