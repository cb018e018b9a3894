"""The inference server of one export: started and ended by the evaluation, never left behind (P181)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlbox.amounts import limit_text
from rlbox.evaluation.policy import Answering, Policy, PolicyError
from rlbox.system.command import STDOUT, ProcessHandle, start_command
from rlbox.system.http import HttpClient
from rlbox.system.ports import find_port_holder
from rlbox.values import Command

Serve = Callable[[Path, Path], contextlib.AbstractContextManager[Answering]]
"""Serves an export, the log in a folder, and ends what it started behind the block."""
Ready = Callable[[], Policy]
"""Waits until a server answers that was started."""
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD")
_POLL_S = 0.5
_FREE_S = 60.0
_PATIENCE_S = {signal.SIGTERM: 30.0, signal.SIGKILL: 10.0}


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How an export is served: `argv` starts the server, which answers at `url` within `start_s` seconds.

    `env` is added to the environment.
    """

    argv: tuple[str, ...]
    url: str
    start_s: float
    env: Mapping[str, str] = field(default_factory=dict)


def vllm_argv(python: str, export: Path, port: int, settings: dict[str, Any]) -> tuple[str, ...]:
    """Return the command that serves `export` on loopback (P184).

    The model's own defaults of decoding (`generation_config.json`) are left out: the lock decides.
    """
    own = [word for name, value in sorted(settings.items()) for word in _option(name, value)]
    return (
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(export), "--served-model-name", "judged"),
        *("--host", "127.0.0.1", "--port", str(port), "--generation-config", "vllm", *own),
    )


def engine_facts(url: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what the lock says of an engine beside its version: its settings, and what our environment tells vLLM.

    Of a server at `url`, which others started, neither is known.
    """
    own = {name: value for name, value in os.environ.items() if name.startswith("VLLM_") and not _SECRET.search(name)}
    return {"settings": settings, "environment": {} if url else own}


def setting(text: str) -> tuple[str, Any]:
    """Return NAME=VALUE as name and value; a value that says yes or no is a switch."""
    name, _, value = text.partition("=")
    return name, {"true": True, "false": False}.get(value, value)


def _option(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    return [flag] if value is True else [] if value is False else [flag, str(value)]


@contextlib.contextmanager
def served(engine: EngineSettings, log: Path, http: HttpClient) -> Iterator[Policy]:
    """Yield the model of the server while the block runs; what the server says goes to `log`.

    Raises
    ------
    PolicyError
        It ended, or was not ready in time; or another listens where it should.
    """
    with starting(engine, log, http) as ready:
        yield ready()


@contextlib.contextmanager
def starting(engine: EngineSettings, log: Path, http: HttpClient) -> Iterator[Ready]:
    """As `served`, but yield what waits until it answers: other work can be done meanwhile."""
    _await_port(engine.url)
    log.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + engine.start_s
    with log.open("ab") as stream:
        process = start_command(
            Command(argv=engine.argv, env=engine.env), stdout=stream, stderr=STDOUT, dies_with_us=True
        )
    try:
        yield lambda: _ready(process, engine, deadline, log, http)
    finally:
        _end(process)


def _await_port(url: str) -> None:
    """Wait until nobody listens where the server will: one that was killed a moment ago must not answer for it."""
    port, deadline = urlsplit(url).port or 0, time.monotonic() + _FREE_S
    while holder := find_port_holder(port):
        if time.monotonic() >= deadline:
            raise PolicyError(f"port {port} of the inference server is taken: {holder}")
        time.sleep(_POLL_S)


def _ready(process: ProcessHandle, engine: EngineSettings, deadline: float, log: Path, http: HttpClient) -> Policy:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PolicyError(f"the inference server ended with status {process.returncode}; read {log}")
        with contextlib.suppress(PolicyError):
            return Policy(engine.url, http)
        time.sleep(_POLL_S)
    raise PolicyError(f"the inference server was not ready after {limit_text(engine.start_s)}; read {log}")


def _end(process: ProcessHandle) -> None:
    """End the whole group: what the server started must be gone before the next export needs the GPU."""
    for number, patience_s in _PATIENCE_S.items():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            process.poll()
            if not _group_lives(process.pid):
                return
            time.sleep(0.1)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
