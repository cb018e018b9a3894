"""What serves exports: a server that is up, or vLLM, started here and kept up for all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlbox.evaluation.act.policy import Policy
from rlbox.evaluation.act.say import say
from rlbox.evaluation.act.server import EngineSettings, Serve, engine_facts, served, vllm_argv
from rlbox.evaluation.serving.act.exchange import DEVELOPER
from rlbox.evaluation.serving.act.kept_up import KeptUp
from rlbox.machine.act.http import Http


@dataclass(frozen=True, kw_only=True)
class WantedEngine:
    """The server at `url`; without one vLLM of the interpreter `python`, on loopback, with `settings` of its options.

    It must be ready within `start_s` seconds.
    """

    url: str = ""
    python: str = ""
    port: int = 8000
    settings: Mapping[str, Any] = field(default_factory=dict)
    start_s: float = 1800.0


@contextlib.contextmanager
def serving(wanted: WantedEngine, http: Http, say: Callable[[str], None] = say) -> Iterator[Serve]:
    """Yield what serves exports; an engine that was started for them ends with the block."""
    if wanted.url:
        yield lambda export, folder: contextlib.nullcontext(Policy(wanted.url, http))
        return

    def start(export: Path, folder: Path) -> contextlib.AbstractContextManager[Policy]:
        argv = vllm_argv(wanted.python, export, wanted.port, dict(wanted.settings))
        url = f"http://127.0.0.1:{wanted.port}"
        engine = EngineSettings(argv=argv, url=url, start_s=wanted.start_s, env=DEVELOPER)
        return served(engine, folder / "server.log", http)

    engine = {"python": wanted.python, **engine_facts("", dict(wanted.settings))}
    kept_up = KeptUp(start, engine, say)
    try:
        yield kept_up
    finally:
        kept_up.close()
