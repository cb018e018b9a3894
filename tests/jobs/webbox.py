"""A job's application on a free port of loopback, while a test runs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI


def serving(app: FastAPI) -> Iterator[str]:
    """Yield the address that `app` answers at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(5)
