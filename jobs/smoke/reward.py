"""HTTP reward server: computes the reward of answers from the cards and chips in each request.

`POST /score` takes {"items": [{"hole", "board", "pot", "to_call", "stack", "answer"}, ...]} and returns {"scores":
[{"reward", "action", "legal", "best", "equity", "values"}, ...]} in the same order, 400 with {"error"} if it is bad.
`GET /health` returns 200. Only loopback is served. Nothing is looked up: other keys of an item are ignored.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
from dataclasses import asdict
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from smoke import program
from smoke.decision import Spot, score

HOST = "127.0.0.1"
LARGEST_BODY = 16 << 20  # bytes; a batch of 1000 answers is about 200 kB


def score_items(body: bytes) -> dict[str, Any]:
    """Return the answer to `POST /score`. Raises ValueError naming the item that is wrong."""
    request = json.loads(body)
    items = request.get("items") if isinstance(request, dict) else None
    if not isinstance(items, list):
        raise ValueError('the body must be {"items": [...]}')
    scores = []
    for place, item in enumerate(items):
        try:
            spot, answer = Spot.from_json(item), item.get("answer")
        except ValueError as error:
            raise ValueError(f"items[{place}]: {error}") from error
        if not isinstance(answer, str):
            raise ValueError(f"items[{place}]: answer must be a string")
        scores.append(asdict(score(spot, answer)))
    return {"scores": scores}


def application() -> FastAPI:
    """Return what scores batches and answers the probe."""
    app = FastAPI(openapi_url=None)

    @app.exception_handler(404)
    @app.exception_handler(405)
    def unknown(request: Request, _: Exception) -> JSONResponse:
        return JSONResponse({"error": f"no such path: {request.url.path}"}, 404)

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/score")
    async def scores(request: Request) -> JSONResponse:
        size = request.headers.get("Content-Length", "")
        if not size.isdigit() or int(size) > LARGEST_BODY:
            error = f"Content-Length must be 0 to {LARGEST_BODY}"
            return JSONResponse({"error": error}, 413, {"Connection": "close"})
        try:
            return JSONResponse(await run_in_threadpool(score_items, await request.body()))
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)

    return app


def listen(port: int) -> socket.socket:
    """Return a socket that takes connections from now on; port 0 takes a free one. Raises JobError when it is taken."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        message = f"cannot listen on {HOST}:{port}: {os.strerror(error.errno)}; free the port or pass another --port"
        raise program.JobError(message) from error


def main() -> None:
    """Parse the command line and serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="smoke.reward", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    listener = listen(parser.parse_args().port)
    print(f"reward server ready on http://{HOST}:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(application(), timeout_keep_alive=60, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    program.run("smoke.reward", main)
