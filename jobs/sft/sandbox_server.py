"""A code sandbox for machines without SandboxFusion: POST /run_code for Python, in SandboxFusion's own form.

Each program is a process group with limits of its own: time, address space, file size, an empty folder, no environment.
It is no wall against code that means harm: it listens on loopback alone, and runs what a model wrote as its own user.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from sft import web

LONGEST = 1 << 20  # bytes of output that are kept
FUSION = "/opt/rlbox/bin/sandbox-serve"


def run_python(code: str, stdin: str, timeout_s: float, memory_mb: int) -> dict[str, Any]:
    """Run a program and return what SandboxFusion calls run_result."""

    def limit() -> None:
        if memory_mb > 0:
            resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (int(timeout_s) + 1,) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    began = time.monotonic()
    env = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "LANG": "C.UTF-8"}
    with tempfile.TemporaryDirectory(prefix="sandbox-") as folder:
        paths = {name: os.path.join(folder, f".{name}") for name in ("code", "stdin", "stdout", "stderr")}
        for name, text in (("code", code), ("stdin", stdin)):
            with open(paths[name], "w", encoding="utf-8") as stream:
                stream.write(text)
        with (
            open(paths["stdin"], "rb") as given,
            open(paths["stdout"], "wb") as out,
            open(paths["stderr"], "wb") as err,
        ):
            pipes = {"stdin": given, "stdout": out, "stderr": err}
            argv = (sys.executable, "-I", paths["code"])
            process = subprocess.Popen(argv, cwd=folder, env=env, start_new_session=True, preexec_fn=limit, **pipes)
            code_of = _ended(process, timeout_s)
        told = {name: _head(paths[name]) for name in ("stdout", "stderr")}
    return {
        "status": "TimeLimitExceeded" if code_of is None else "Finished",
        "execution_time": round(time.monotonic() - began, 3),
        "return_code": code_of,
        **told,
    }


def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """Return the exit status, or nothing when the time was over; nothing of the program's group is left."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _head(path: str) -> str:
    with open(path, "rb") as stream:
        return stream.read(LONGEST).decode("utf-8", "replace")


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to one request."""
    if asked.get("language", "python") != "python":
        return {"status": "SandboxError", "message": f"language {asked['language']!r}: python alone runs here"}
    timeout_s, memory = float(asked.get("run_timeout", 10)), int(asked.get("memory_limit_MB", -1))
    result = run_python(asked["code"], asked.get("stdin") or "", timeout_s, memory)
    good = result["status"] == "Finished" and result["return_code"] == 0
    return {
        "status": "Success" if good else "Failed",
        "message": "",
        "run_result": result,
        "compile_result": None,
        "files": {},
    }


def application() -> FastAPI:
    """Return what answers POST /run_code and GET /v1/ping."""
    app = web.application()

    @app.get("/v1/ping")
    def ping() -> str:
        return "pong"

    @app.post("/run_code")
    async def run_code(request: Request) -> JSONResponse:
        try:
            asked = json.loads(await request.body())
            asked["code"]
        except (ValueError, KeyError, TypeError) as error:
            return JSONResponse({"detail": f"no request: {error!r}"}, 422)
        return JSONResponse(await run_in_threadpool(answer, asked))

    return app


def main() -> None:
    """Serve on loopback, or become SandboxFusion's server."""
    parser = argparse.ArgumentParser(prog="sft.sandbox_server", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--kind", choices=("fusion", "own"), default="own", help="fusion: the server baked into the image"
    )
    args = parser.parse_args()
    if args.kind == "fusion":
        if not os.path.exists(FUSION):
            sys.exit(f"sft.sandbox_server: error: {FUSION} is not in this image; --set sandbox=own takes the job's own")
        os.execve(FUSION, (FUSION,), os.environ | {"SANDBOX_HOST": "127.0.0.1", "SANDBOX_PORT": str(args.port)})
    listener = web.listen(args.port)
    print(f"code sandbox listens on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
    web.serve(application(), listener, log_requests=False)  # a line a program would fill the log


if __name__ == "__main__":
    main()
