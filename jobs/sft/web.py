"""How the job's own server listens: on this machine alone."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI


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
