"""What serves exports: a server that is up, or vLLM, once or several times, started here and kept up for all."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlbox.evaluation.gpu_holders import probe_gpu_states
from rlbox.evaluation.policy import Policy
from rlbox.evaluation.say import say
from rlbox.evaluation.server import EngineSettings, Ready, Serve, engine_facts, starting, vllm_argv
from rlbox.evaluation.serving.exchange import DEVELOPER
from rlbox.evaluation.serving.kept_up import KeptUp, Start
from rlbox.evaluation.serving.shares import SEEN, share_gpus
from rlbox.evaluation.serving.together import Together
from rlbox.system.http import HttpClient
from rlbox.system.ports import find_port_holder


@dataclass(frozen=True, kw_only=True)
class WantedEngine:
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


@contextlib.contextmanager
def serving(
    wanted: WantedEngine, http: HttpClient, say: Callable[[str], None] = say, first: tuple[Path, Path] | None = None
) -> Iterator[Serve]:
    """Yield what serves exports; engines that were started for them end with the block.

    Parameters
    ----------
    first
        The export that will be served first, and the folder of its log: the start is not waited for until it is.

    Raises
    ------
    ValueError
        Too few GPUs are free.
    """
    if wanted.url:
        yield lambda export, folder: contextlib.nullcontext(Policy(wanted.url, http))
        return
    gpus = probe_gpu_states() if wanted.servers != 1 else ()
    shares = share_gpus(wanted.servers, gpus, os.environ.get(SEEN), wanted.settings)
    for env in shares:
        if SEEN in env:
            say(f"one of {len(shares)} servers: GPU {env[SEEN]}")
    engine = {"python": wanted.python, **engine_facts("", dict(wanted.settings))}
    ports = _ports(wanted.port, len(shares))
    starts = [_start(wanted, at, port, env, http) for at, (port, env) in enumerate(zip(ports, shares, strict=True))]
    kept_up = [KeptUp(start, engine, say) for start in starts]
    with contextlib.closing(kept_up[0] if len(kept_up) == 1 else Together(kept_up)) as serve:
        if first:
            serve.begin(*first)
        yield serve


def _ports(first: int, count: int) -> list[int]:
    """Return the port that is wanted and those behind it on which nobody listens."""
    behind = (port for port in range(first + 1, 1 << 16) if not find_port_holder(port))
    return [first, *itertools.islice(behind, count - 1)]


def _start(wanted: WantedEngine, at: int, port: int, env: Mapping[str, str], http: HttpClient) -> Start:
    """Return what starts the server of a number, its log beside the result of the export that it is started for."""
    log = f"server-{at + 1}.log" if at else "server.log"

    def start(export: Path, folder: Path) -> contextlib.AbstractContextManager[Ready]:
        argv = vllm_argv(wanted.python, export, port, dict(wanted.settings))
        url = f"http://127.0.0.1:{port}"
        engine = EngineSettings(argv=argv, url=url, start_s=wanted.start_s, env={**DEVELOPER, **env})
        return starting(engine, folder / log, http)

    return start
