"""Run by the stack's own interpreter on the head: ask Ray's jobs API, with the token that its environment names.

Arguments: the dashboard's port, and the request as JSON: `call` is list, get, submit or stop. It prints a line of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

_ANSWER_S = 30.0


def _ask(port: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """Return status and text of Ray's answer; no proxy is asked."""
    headers = {"Content-Type": "application/json", "User-Agent": "rlbox"}  # 2.43 fails without one
    token_path = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
    if token_path:
        with open(token_path, encoding="utf-8") as file:
            headers["Authorization"] = f"Bearer {file.read().strip()}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=_ANSWER_S) as answer:
            return {"status": answer.status, "text": answer.read().decode("utf-8", "replace")}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "text": error.read().decode("utf-8", "replace")}


def _submit(port: str, request: dict[str, Any]) -> dict[str, Any]:
    """Submit a job; Ray's own client packs its working directory, which is removed then, once for each content."""
    os.environ["RAY_RUNTIME_ENV_IGNORE_GITIGNORE"] = "1"  # what goes along was chosen before
    sdk = importlib.import_module("ray.job_submission")
    environment = {"working_dir": request["working_dir"]} if request["working_dir"] else {}
    try:
        client = sdk.JobSubmissionClient(f"http://127.0.0.1:{port}")
        client.submit_job(entrypoint=request["entrypoint"], submission_id=request["id"], runtime_env=environment)
    except (RuntimeError, ValueError) as error:
        return {"status": 400, "text": str(error)}
    finally:
        shutil.rmtree(request["working_dir"] or "", ignore_errors=True)
    return {"status": 200, "text": ""}


def _answer(port: str, request: dict[str, Any]) -> dict[str, Any]:
    """Return what Ray answers to a request."""
    path = f"/api/jobs/{quote(request.get('id', ''), safe='')}"
    if request["call"] == "submit":
        return _submit(port, request)
    if request["call"] == "stop":
        return _ask(port, "POST", f"{path}/stop")
    return _ask(port, "GET", path)


def _main() -> None:
    """Answer the request of the command line."""
    sys.path = [path for path in sys.path if path]
    try:
        row = _answer(sys.argv[1], json.loads(sys.argv[2]))
    except Exception as error:
        row = {"status": 0, "text": f"{type(error).__name__}: {error}"}
    sys.stdout.write("\n" + json.dumps(row) + "\n")


if __name__ == "__main__":
    _main()
