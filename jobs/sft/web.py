"""How the job's own servers listen, and how its programs ask them: JSON over HTTP, on this machine, no proxy asked."""

from __future__ import annotations

import json
import socket
from typing import Any

import urllib3
import uvicorn
from fastapi import FastAPI


class AskError(Exception):
    """A server could not be reached, or its answer is no JSON or not of status 200 to 299."""


class Server:
    """The server at `url`; every request is sent once. Safe to use from several threads.

    Parameters
    ----------
    wait_s
        Longest wait for a connection, and between two pieces of an answer.
    at_once
        Connections that are kept open.
    """

    def __init__(self, url: str, *, wait_s: float, at_once: int = 64) -> None:
        self.url = url.rstrip("/")
        self._pool = urllib3.PoolManager(maxsize=at_once, timeout=wait_s, retries=False)

    def ask(self, path: str, content: Any = None) -> tuple[int, str]:
        """Return status and text of the answer to GET, or to POST when there is `content`."""
        words = {} if content is None else {"json": content}
        try:
            reply = self._pool.request("GET" if content is None else "POST", self.url + path, **words)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise AskError(f"{self.url}{path}: {type(error).__name__}: {error}") from error
        return reply.status, reply.data.decode("utf-8", "replace")

    def read(self, path: str, answered: tuple[int, str]) -> Any:
        """Return the JSON of an answer to `ask`."""
        status, text = answered
        if not 200 <= status < 300:
            raise AskError(f"{self.url}{path}: status {status}: {text[:200].strip()}")
        try:
            return json.loads(text)
        except ValueError as error:
            raise AskError(f"{self.url}{path}: no JSON: {error}") from error


def application() -> FastAPI:
    """Return an application without pages of its own: what is not added is not found."""
    return FastAPI(openapi_url=None)


def listen(port: int) -> socket.socket:
    """Return a socket on loopback that takes connections from now on; port 0 takes a free one."""
    return socket.create_server(("127.0.0.1", port))


def serve(app: FastAPI, listener: socket.socket, *, log_requests: bool) -> None:
    """Answer until the process is ended."""
    config = uvicorn.Config(
        app,
        log_level="info" if log_requests else "warning",
        timeout_keep_alive=300,  # s; the clients keep their connections
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener])
