"""Serve an export: by a server that is up, or by vLLM, started for each export and ended behind it (P181)."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlbox.amounts import limit_text
from rlbox.evaluation.gpu_split import CUDA_VISIBLE, assign_gpus, probe_gpu_states
from rlbox.evaluation.model_client import Model, ModelClient, ModelClientPool, ModelServerError
from rlbox.i18n import _
from rlbox.system.command import STDOUT, ProcessHandle, start_command
from rlbox.system.http import HttpClient
from rlbox.system.ports import describe_port_holder
from rlbox.values import Command

ServeExport = Callable[[Path, Path], contextlib.AbstractContextManager[Model]]
"""Serves an export, the log in a folder, and ends what it started behind the block."""
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD")
_POLL_S = 0.5
_FREE_S = 60.0
_PATIENCE_S = {signal.SIGTERM: 30.0, signal.SIGKILL: 10.0}


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """How an export is served: `argv` starts the server, which answers at `url` within `start_s` seconds.

    `env` is added to the environment.
    """

    argv: tuple[str, ...]
    url: str
    start_s: float
    env: Mapping[str, str] = field(default_factory=dict)


def build_vllm_argv(python: str, export: Path, port: int, settings: dict[str, Any]) -> tuple[str, ...]:
    """Return the command that serves `export` on loopback (P184).

    The model's own defaults of decoding (`generation_config.json`) are left out: the lock decides.
    """
    own = [word for name, value in sorted(settings.items()) for word in _option(name, value)]
    return (
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(export), "--served-model-name", "judged"),
        *("--host", "127.0.0.1", "--port", str(port), "--generation-config", "vllm", *own),
    )


def describe_engine(url: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what the lock says of an engine beside its version: its settings, and what our environment tells vLLM.

    Of a server at `url`, which others started, neither is known.
    """
    own = {name: value for name, value in os.environ.items() if name.startswith("VLLM_") and not _SECRET.search(name)}
    return {"settings": settings, "environment": {} if url else own}


def parse_setting(text: str) -> tuple[str, Any]:
    """Return NAME=VALUE as name and value; a value that says yes or no is a switch."""
    name, __, value = text.partition("=")
    return name, {"true": True, "false": False}.get(value, value)


def _option(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    return [flag] if value is True else [] if value is False else [flag, str(value)]


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The server at `url`; without one vLLM of the interpreter `python`, on loopback, with `settings` of its options.

    It must be ready within `start_s` seconds. Several `servers` share the work, from `port` on, each on free GPUs of
    its own; 0: as many as GPUs are free.
    """

    url: str = ""
    python: str = ""
    port: int = 8000
    settings: Mapping[str, Any] = field(default_factory=dict)
    start_s: float = 1800.0
    servers: int = 1


def make_server_factory(wanted: EngineOptions, http: HttpClient, say: Callable[[str], None]) -> ServeExport:
    """Return what serves exports; `ValueError` where too few GPUs are free."""
    if wanted.url:
        return lambda export, folder: contextlib.nullcontext(ModelClient(wanted.url, http))
    gpus = probe_gpu_states() if wanted.servers != 1 else ()
    shares = assign_gpus(wanted.servers, gpus, os.environ.get(CUDA_VISIBLE), wanted.settings)
    for env in shares:
        if CUDA_VISIBLE in env:
            say(f"one of {len(shares)} servers: GPU {env[CUDA_VISIBLE]}")

    def serve(export: Path, folder: Path) -> contextlib.AbstractContextManager[Model]:
        ports = _ports(wanted.port, len(shares))
        engines = [_vllm(wanted, export, port, env) for port, env in zip(ports, shares, strict=True)]
        return run_servers(engines, folder, http)

    return serve


def _ports(first: int, count: int) -> list[int]:
    """Return the port that is wanted and those behind it on which nobody listens."""
    behind = (port for port in range(first + 1, 1 << 16) if not describe_port_holder(port))
    return [first, *itertools.islice(behind, count - 1)]


def _vllm(wanted: EngineOptions, export: Path, port: int, env: Mapping[str, str]) -> ServerCommand:
    argv = build_vllm_argv(wanted.python, export, port, dict(wanted.settings))
    return ServerCommand(argv=argv, url=f"http://127.0.0.1:{port}", start_s=wanted.start_s, env=env)


@contextlib.contextmanager
def run_servers(engines: Sequence[ServerCommand], folder: Path, http: HttpClient) -> Iterator[Model]:
    """Yield the model behind servers that run as long as the block; what they say goes to `folder`/server.log.

    Of several, the logs of the others are server-2.log and so on.

    Raises
    ------
    PolicyError
        One ended, or was not ready in time; another listens where it should; or they are not the same engine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        started = []
        for number, engine in enumerate(engines, start=1):
            _await_port(engine.url)
            log = folder / (f"server-{number}.log" if number > 1 else "server.log")
            started.append((_start(engine, log), engine, log))
            stack.callback(_end, started[-1][0])
        deadline = time.monotonic() + max(engine.start_s for engine in engines)
        members = [_ready(process, engine, deadline, log, http) for process, engine, log in started]
        yield members[0] if len(members) == 1 else ModelClientPool(members)


def _start(engine: ServerCommand, log: Path) -> ProcessHandle:
    # It dies with the thread that starts it (PR_SET_PDEATHSIG is of threads): so it is started by the caller's own.
    with log.open("ab") as stream:
        command = Command(argv=engine.argv, env=engine.env)
        return start_command(command, stdout=stream, stderr=STDOUT, die_with_parent=True)


def _await_port(url: str) -> None:
    """Wait until nobody listens where the server will: one that was killed a moment ago must not answer for it."""
    port, deadline = urlsplit(url).port or 0, time.monotonic() + _FREE_S
    while holder := describe_port_holder(port):
        if time.monotonic() >= deadline:
            raise ModelServerError(
                _("port {port} of the inference server is taken: {holder}").format(port=port, holder=holder)
            )
        time.sleep(_POLL_S)


def _ready(process: ProcessHandle, engine: ServerCommand, deadline: float, log: Path, http: HttpClient) -> ModelClient:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ModelServerError(
                _("the inference server ended with status {returncode}; read {log}").format(
                    returncode=process.returncode, log=log
                )
            )
        with contextlib.suppress(ModelServerError):
            return ModelClient(engine.url, http)
        time.sleep(_POLL_S)
    raise ModelServerError(
        _("the inference server was not ready after {start_s}; read {log}").format(
            start_s=limit_text(engine.start_s), log=log
        )
    )


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
