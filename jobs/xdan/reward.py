"""The reward server: half a point for the form, one for the right answer, computed from the data set's answers.

`POST /get_reward` takes {"query": […], "prompts": […], "labels": […]} (queries are decoded prompts with responses, the
other two may be missing) and returns {"rewards": […], "scores": […]} in the same order, `scores` being 1 for right
answers. 400 says what is wrong with the request, 422 which problem is unknown: nothing is guessed. `GET /health_check`
answers when the data set is loaded. Protocol: OpenRLHF 0.8.2, `openrlhf/utils/remote_rm_utils.py`; it waits 180 s.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from starlette.background import BackgroundTask

from xdan.answers import final_answer, knows_algebra, same_by_algebra, same_plainly, well_formed
from xdan.chat import TEMPLATES, Template, response_in
from xdan.data import Problem, read_problems
from xdan.program import JobError, run

FORM_POINTS, ANSWER_POINTS = 0.5, 1.0
LARGEST_BODY = 1 << 30  # bytes; 2048 responses of 8192 tokens are about 70 MB


class UnknownProblem(ValueError):
    """A query whose problem is not in the data set and that brings no label."""


class Judge:
    """Computes rewards; safe to use from several threads.

    Parameters
    ----------
    pool
        Processes for `same_by_algebra`; None: plain comparison alone.
    """

    def __init__(self, problems: Sequence[Problem], template: Template, pool: Executor | None) -> None:
        self._answers = {problem.prompt: problem.answer for problem in problems}
        self._template = template
        self._pool = pool

    def __len__(self) -> int:
        """Return the number of problems."""
        return len(self._answers)

    def rewards(self, request: Any) -> dict[str, list[float]]:
        """Return `rewards` and `scores` of a request.

        Raises
        ------
        UnknownProblem
            No answer is known for a query.
        ValueError
            The request is not what the trainer sends.
        """
        queries, prompts, labels = _lists(request)
        responses, pairs = [], []
        for place, query in enumerate(queries):
            responses.append(response_in(query, prompts[place], self._template))
            wanted = labels[place] or self._answers.get(prompts[place]) or self._find(query)
            if not wanted:
                raise UnknownProblem(f"query[{place}] has no label and is no problem of the data set: {query[:200]!r}")
            pairs.append((final_answer(responses[-1]), wanted))
        scores = self._same(pairs)
        forms = [FORM_POINTS * well_formed(response) for response in responses]
        return {"rewards": [form + score for form, score in zip(forms, scores, strict=True)], "scores": scores}

    def _find(self, query: str) -> str:
        """Return the answer of the problem whose prompt the query begins with, padding aside; else nothing."""
        head, found, _ = query.partition(self._template.response)
        start = head.find(self._template.message[:4])
        return self._answers.get(head[max(start, 0) :] + found, "") if found else ""

    def _same(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        scores = [ANSWER_POINTS * same_plainly(*pair) for pair in pairs]
        open_places = [place for place, pair in enumerate(pairs) if not scores[place] and all(pair)]
        if self._pool is not None and open_places:
            verdicts = self._pool.map(same_by_algebra, [pairs[place] for place in open_places], chunksize=8)
            for place, same in zip(open_places, verdicts, strict=True):
                scores[place] = ANSWER_POINTS * same
        return scores


def _lists(request: Any) -> tuple[list[str], list[str], list[str]]:
    if not isinstance(request, dict) or not isinstance(request.get("query"), list):
        raise ValueError('the body must be {"query": [...], "prompts": [...], "labels": [...]}')
    queries, found = request["query"], []
    for key in ("query", "prompts", "labels"):
        values = request.get(key) or [""] * len(queries)
        if not isinstance(values, list) or len(values) != len(queries):
            raise ValueError(f"{key}: must be a list as long as query")
        if not all(isinstance(value, str) for value in values):
            raise ValueError(f"{key}: must hold texts")
        found.append(values)
    return found[0], found[1], found[2]


def application(judge: Judge) -> FastAPI:
    """Return what judges batches and answers the health check."""
    app = FastAPI(openapi_url=None)

    @app.exception_handler(404)
    @app.exception_handler(405)
    def unknown(request: Request, _: Exception) -> JSONResponse:
        return JSONResponse({"error": f"no such path: {request.url.path}"}, 404)

    @app.get("/health_check")
    def health() -> dict[str, Any]:
        return {"status": "ready", "problems": len(judge)}

    @app.post("/get_reward")
    async def rewards(request: Request) -> JSONResponse:
        size = request.headers.get("Content-Length", "")
        if not size.isdigit() or int(size) > LARGEST_BODY:
            error = f"Content-Length must be 0 to {LARGEST_BODY}"
            return JSONResponse({"error": error}, 413, {"Connection": "close"})
        return await run_in_threadpool(_judged, judge, await request.body())

    return app


def _judged(judge: Judge, body: bytes) -> JSONResponse:
    """Return the answer to a batch."""
    try:
        return JSONResponse(judge.rewards(json.loads(body)))
    except UnknownProblem as error:
        return JSONResponse({"error": str(error)}, 422)
    except ValueError as error:
        return JSONResponse({"error": str(error)}, 400)
    except BrokenExecutor as error:
        return JSONResponse({"error": f"a process for algebra died: {error}"}, 500, background=BackgroundTask(_end))


def _end() -> None:
    print("[xdan][reward] a process for algebra died; the server ends", file=sys.stderr, flush=True)
    os._exit(1)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections from now on; port 0 takes a free one. Raises JobError when it is taken."""
    try:
        return socket.create_server((host, port))
    except OSError as error:
        message = f"cannot listen on {host}:{port}: {os.strerror(error.errno)}; free the port or pass another --port"
        raise JobError(message) from error


def _pool(workers: int) -> Executor:
    """Return processes that have math-verify loaded; spawned, because a server of threads must not fork."""
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    list(pool.map(same_by_algebra, [("1", "1")] * workers))
    return pool


def main() -> None:
    """Load the data set and serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="xdan.reward", description=__doc__)
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--input_key", default="message", help="key of the message in a row")
    parser.add_argument("--answer_key", default="answer", help="key of the answer in a row")
    parser.add_argument("--prompt-template", choices=sorted(TEMPLATES), default="chatml")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=5001)
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="processes for algebra")
    args = parser.parse_args()
    template = TEMPLATES[args.prompt_template]
    problems = read_problems(args.dataset, input_key=args.input_key, answer_key=args.answer_key, template=template)
    pool = _pool(args.workers) if knows_algebra() else None
    listener = listen(args.host, args.port)
    how = f"math-verify in {args.workers} processes" if pool else "plain comparison: math-verify is not installed"
    address = f"http://{args.host}:{listener.getsockname()[1]}"
    print(f"[xdan][reward] {len(problems)} problems, {how}; ready on {address}", flush=True)
    app = application(Judge(problems, template, pool))
    uvicorn.Server(uvicorn.Config(app, timeout_keep_alive=300, timeout_graceful_shutdown=1)).run(sockets=[listener])


if __name__ == "__main__":
    run("xdan.reward", main)
