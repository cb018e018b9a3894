"""The engine of a node, as far as its program asks it: HTTP over its socket."""

from __future__ import annotations

import base64
import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from rlbox.cluster.programs import node_http, node_ray
from rlbox.cluster.programs.node_wire import NodeFailed, from_json, to_json

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from rlbox.cluster.programs.node_wire import Row

USUAL = "/var/run/docker.sock"
CLUSTER_LABEL, CALL_LABEL = "rlbox.cluster", "rlbox.call"
_ANSWER_S, _REMOVED_S = 30.0, 90.0
"""On a busy machine an engine takes its time; that is no failure."""
_GONE_S, _PAUSE_S, _UNDONE_S = 3.0, 0.5, 300.0


def find_socket() -> str:
    """Return where the engine of this user listens: `DOCKER_HOST`, a rootless one, or the usual place."""
    told = os.environ.get("DOCKER_HOST", "")
    if told.startswith("unix://"):
        return told[len("unix://") :]
    own = os.path.join(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}", "docker.sock")
    return own if os.path.exists(own) and not os.path.exists(USUAL) else USUAL


def ask(path: str, method: str, what: str, timeout: float = _ANSWER_S) -> Any:
    """Return the engine's answer as JSON types; `OSError` where it does not answer, `ValueError` where it refuses."""
    status, body, _ = node_http.ask_local(path, method, what, timeout)
    if status >= 400:
        raise ValueError(f"{status} {body.decode('utf-8', 'replace').strip()[:200]}")
    return from_json(body) if body.strip() else {}


def engine_facts(path: str) -> Row:
    """Return how the engine stands: `state` is ok, absent, denied, silent or broken, `said` what it said."""
    facts: Row = {"socket": path, "state": "ok", "said": ""}
    if not os.path.exists(path):
        facts["state"] = "absent"
        return facts
    try:
        info = ask(path, "GET", "/info")
    except PermissionError as error:
        facts.update(state="denied", said=str(error))
        return facts
    except OSError as error:
        facts.update(state="silent", said=str(error))
        return facts
    except ValueError as error:
        facts.update(state="broken", said=str(error))
        return facts
    facts.update(
        version=info.get("ServerVersion", ""),
        root=info.get("DockerRootDir", ""),
        free=_free(info.get("DockerRootDir", "")),
        security=info.get("SecurityOptions") or [],
        runtimes=sorted(info.get("Runtimes") or {}),
        cdi=info.get("CDISpecDirs") or [],
    )
    return facts


def _free(path: str) -> int:
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def containers(path: str, label: str = CLUSTER_LABEL) -> list[Row]:
    """Return the containers with a label, running or not: name, state, exit code, labels."""
    filters = node_http.quoted(to_json({"label": [label]}))
    rows = ask(path, "GET", "/containers/json?all=1&filters=" + filters)
    found = []
    for row in rows:
        try:
            state = ask(path, "GET", f"/containers/{row['Id']}/json")["State"]
        except (ValueError, KeyError):  # it has gone meanwhile
            continue
        found.append(
            {
                "id": row["Id"],
                "name": (row.get("Names") or ["/?"])[0][1:],
                "image": row.get("ImageID", ""),
                "labels": row.get("Labels") or {},
                "status": state.get("Status", ""),
                "exit_code": state.get("ExitCode", 0),
                "oom": bool(state.get("OOMKilled")),
                "pid": state.get("Pid", 0),
                "started": state.get("StartedAt", ""),
                "finished": state.get("FinishedAt", ""),
                "said": _said(path, row["Id"]) if state.get("Status") == "exited" else "",
            }
        )
    return found


def ends(path: str, ended: threading.Event) -> Iterator[str]:
    """Yield the id of each container of a cluster as it ends or goes, until `ended` is set."""
    kinds = {"type": ["container"], "event": ["die", "oom", "destroy"], "label": [CLUSTER_LABEL]}
    for line in node_http.lines_local(path, "/events?filters=" + node_http.quoted(to_json(kinds)), ended):
        with contextlib.suppress(ValueError):
            yield str(from_json(line).get("id", ""))


def _said(path: str, container: str) -> str:
    """Return which part of Ray ended first in a container that has ended."""
    try:
        what = f"/containers/{container}/logs?stdout=1&stderr=1&tail=200"
        return node_ray.ended_part(node_http.ask_local(path, "GET", what, _ANSWER_S)[1])
    except OSError:
        return ""


def image_facts(path: str, name: str) -> Row | None:
    """Return id, digests and size of an image, None where the engine has none of that name."""
    try:
        row = ask(path, "GET", f"/images/{node_http.quoted(name, safe='')}/json")
    except ValueError:
        return None
    return {"id": row.get("Id", ""), "digests": row.get("RepoDigests") or [], "size": row.get("Size", 0)}


def remove_call(path: str, call: str) -> list[str]:
    """Remove every container that one call made, also one that the engine is only just making, however busy it is.

    Return where the sessions of their Ray lie.
    """
    links: list[str] = []
    what = "/containers/json?all=1&filters=" + node_http.quoted(to_json({"label": [f"{CALL_LABEL}={call}"]}))
    end = time.monotonic() + _UNDONE_S
    quiet = time.monotonic()
    while time.monotonic() < end:
        try:
            found = ask(path, "GET", what)
        except (OSError, ValueError):
            time.sleep(_PAUSE_S)
            continue
        for row in found:
            with contextlib.suppress(OSError, ValueError):  # what has ended makes no more sessions
                ask(path, "POST", f"/containers/{row['Id']}/kill")
            links.append(link_of(path, row["Id"], "/tmp/ray"))  # noqa: S108 - in the container
            with contextlib.suppress(OSError, ValueError):
                ask(path, "DELETE", f"/containers/{row['Id']}?force=1&v=1", _REMOVED_S)
        quiet = time.monotonic() if found else quiet
        if time.monotonic() - quiet > _GONE_S:
            return links
        time.sleep(_PAUSE_S)
    raise NodeFailed("its Docker engine does not remove what was begun", "engine")


def take_down(path: str, ids: list[str], grace: int) -> list[str]:
    """End and remove containers; return where the sessions of their Ray lie, as their own links say."""
    sessions = []
    for one in ids:
        with contextlib.suppress(OSError, ValueError):
            ask(path, "POST", f"/containers/{one}/stop?t={grace}", grace + _ANSWER_S)
        link = link_of(path, one, "/tmp/ray")  # noqa: S108 - in the container
        try:
            ask(path, "DELETE", f"/containers/{one}?force=1&v=1", _REMOVED_S)
        except ValueError:  # it has gone meanwhile
            pass
        except OSError as error:
            raise NodeFailed(f"its Docker engine does not remove container {one[:12]}: {error}", "engine") from error
        sessions.append(link)
    return [link for link in sessions if link]


def link_of(path: str, container: str, where: str) -> str:
    """Return where a link in a container leads, running or not; empty where there is none."""
    try:
        _, _, headers = node_http.ask_local(
            path, "HEAD", f"/containers/{container}/archive?path={node_http.quoted(where)}", _ANSWER_S
        )
        told = headers.get("x-docker-container-path-stat", "")
        return str(from_json(base64.b64decode(told)).get("linkTarget", "")) if told else ""
    except (OSError, ValueError):
        return ""
