"""Run by the stack's own interpreter on the head: ask Ray for its nodes or jobs, and print a line of JSON.

Argument: the request as JSON. `call` nodes asks the GCS at the address `gcs` and joins nothing; list, get, submit and
stop ask the jobs API at the dashboard's `port`, with the token that the environment names.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import socket
import sys
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

_LISTENS_S, _ANSWER_S = 5, 30


def _list_nodes(address: str) -> dict[str, Any]:
    """Return the nodes; the words are the same from Ray 2.43 to 2.60.

    Ray is imported once the GCS listens: until then the import would keep its start waiting.
    """
    signal.alarm(_ANSWER_S)  # a call to a GCS that is halted never returns
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), _LISTENS_S).close()
    raylet: Any = importlib.import_module("ray._raylet")
    state = importlib.import_module("ray._private.state").GlobalState()
    options = raylet.GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    state._initialize_global_state(options)
    free = state.available_resources_per_node()
    rows = [
        {
            "id": node.get("NodeID", ""),
            "name": node.get("NodeName", ""),
            "alive": bool(node.get("Alive")),
            "total": node.get("Resources") or {},
            "free": free.get(node.get("NodeID"), {}),
            "death_reason": node.get("DeathReasonMessage", ""),
        }
        for node in state.node_table()
    ]
    return {"nodes": rows}


def _ask_dashboard(port: int, method: str, path: str) -> dict[str, Any]:
    """Return status and text of Ray's answer; no proxy is asked."""
    headers = {"User-Agent": "rlbox"}  # 2.43 fails without one
    token_path = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
    if token_path:
        with open(token_path, encoding="utf-8") as file:
            headers["Authorization"] = f"Bearer {file.read().strip()}"
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", None, headers, method=method)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=_ANSWER_S) as answer:
            return {"status": answer.status, "text": answer.read().decode("utf-8", "replace")}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "text": error.read().decode("utf-8", "replace")}


def _submit(port: int, id_: str, entrypoint: str, working_dir: str) -> dict[str, Any]:
    """Submit a job; Ray's own client packs its working directory, which is removed then, once for each content."""
    os.environ["RAY_RUNTIME_ENV_IGNORE_GITIGNORE"] = "1"  # what goes along was chosen before
    sdk = importlib.import_module("ray.job_submission")
    environment = {"working_dir": working_dir} if working_dir else {}
    try:
        client = sdk.JobSubmissionClient(f"http://127.0.0.1:{port}")
        client.submit_job(entrypoint=entrypoint, submission_id=id_, runtime_env=environment)
    except (RuntimeError, ValueError) as error:
        return {"status": 400, "text": str(error)}
    finally:
        shutil.rmtree(working_dir, ignore_errors=True)
    return {"status": 200, "text": ""}


def _answer(call: str, gcs: str = "", port: int = 0, id: str = "", **job: str) -> dict[str, Any]:
    if call == "nodes":
        return _list_nodes(gcs)
    if call == "submit":
        return _submit(port, id, **job)
    path = f"/api/jobs/{quote(id, safe='')}"
    return _ask_dashboard(port, "POST", f"{path}/stop") if call == "stop" else _ask_dashboard(port, "GET", path)


def _main() -> None:
    sys.path = [path for path in sys.path if path]
    try:
        row = _answer(**json.loads(sys.argv[1]))
    except Exception as error:
        row = {"error": f"{type(error).__name__}: {error}"[:300]}
    sys.stdout.write("\n" + json.dumps(row) + "\n")


if __name__ == "__main__":
    _main()
