"""One engine for all exports: up once, its weights exchanged as long as it is proven that this changes nothing else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlbox.evaluation.policy import Policy, PolicyError
from rlbox.evaluation.server import Ready
from rlbox.evaluation.serving.exchange import (
    exchange_weights,
    form_of,
    is_proven,
    keep_proof,
    machine_facts,
    probe,
)
from rlbox.evaluation.serving.proof import Probed, differs, proof_key
from rlbox.evaluation.weights import Marks, marks_of, shards_of

Start = Callable[[Path, Path], contextlib.AbstractContextManager[Ready]]
"""Starts an engine for an export, gives what waits until it answers, and ends it behind the block."""
STARTED, EXCHANGED = "started with them", "exchanged in the running engine"
"""How the weights of an export came into the engine that answered."""


class KeptUp:
    """Serves one export after the other; what is up ends with `close`, and where anything fails.

    Parameters
    ----------
    start
        Starts the engine.
    engine
        What decides, beside the form of the model, how the engine computes.
    """

    def __init__(self, start: Start, engine: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self._start, self._engine, self._say = start, engine, say
        self._running = contextlib.ExitStack()
        self._begun: tuple[tuple[str, Marks], Ready] | None = None
        self._policy: Policy | None = None
        self._form: dict[str, str] = {}
        self._loaded: tuple[str, Marks] = ("", ())
        self._said: Probed = ()
        self._refuted = False

    def __call__(self, export: Path, folder: Path) -> contextlib.AbstractContextManager[Policy]:
        """As every `Serve`; behind the block the engine stays up."""
        return self._served(export, folder)

    def begin(self, export: Path, folder: Path) -> None:
        """Start an engine with the export that is wanted first; other work can be done until it is.

        What is wrong with it is said then.
        """
        with contextlib.suppress(OSError):
            shards_of(export)
            self._begun = _identity(export), self._ready(export, folder)

    def _ready(self, export: Path, folder: Path) -> Ready:
        """Start an engine; what is returned waits for it, and raises what was wrong with the start."""
        try:
            return self._running.enter_context(self._start(export, folder))
        except PolicyError as error:
            failed = error

        def raises() -> Policy:
            raise failed

        return raises

    def close(self) -> None:
        """End what is up."""
        self._policy, self._said, self._begun = None, (), None
        self._running.close()

    @contextlib.contextmanager
    def _served(self, export: Path, folder: Path) -> Iterator[Policy]:
        try:
            yield self._same(export) or self._exchanged(export, folder) or self._fresh(export, folder)
        except BaseException:
            self.close()
            raise

    def _same(self, export: Path) -> Policy | None:
        return self._policy if self._policy and self._loaded == _identity(export) else None

    def _fresh(self, export: Path, folder: Path) -> Policy:
        begun, self._begun = self._begun, None
        if not begun or begun[0] != _identity(export):
            self.close()
            begun = _identity(export), self._ready(export, folder)
        policy = begun[1]()
        policy.loaded = STARTED
        self._policy, self._form, self._loaded = policy, form_of(export), begun[0]
        return policy

    def _exchanged(self, export: Path, folder: Path) -> Policy | None:
        """Return the engine that is up with the weights of `export`; nothing where it must be started anew.

        Without a proof it is made: by an engine that is started with the same weights, which then goes on.
        """
        if self._policy is None or self._refuted:
            return None
        if form_of(export) != self._form:
            self._say(f"{_name(export)} is a model of another form: the engine is started anew")
            return None
        try:
            now = self._reloaded(self._policy, export)
        except PolicyError as error:
            self._say(f"weights cannot be exchanged, the engine is started anew: {error!s}")
            return None
        if now is None:
            self._say(f"the engine answers with {_name(export)} as it did before: it is started anew")
            return None
        key = proof_key({**self._engine, **self._policy.facts}, self._form, machine_facts())
        return self._policy if is_proven(key) else self._proven(export, folder, now, key)

    def _reloaded(self, policy: Policy, export: Path) -> Probed | None:
        """Exchange the weights and return what the engine then says of the probes; nothing where it says the same."""
        before = self._said or probe(policy)
        exchange_weights(policy, export)
        now = self._said = probe(policy)
        policy.loaded, policy.root, self._loaded = EXCHANGED, os.path.abspath(export), _identity(export)
        return now if differs(now, before) else None

    def _proven(self, export: Path, folder: Path, exchanged: Probed, key: str) -> Policy:
        """Hold what an engine says whose weights were exchanged against one that is started with them."""
        self._say(f"first exchange of weights in this engine: one that starts with {_name(export)} must say the same")
        policy = self._fresh(export, folder)
        self._said = probe(policy)
        if why := differs(exchanged, self._said):
            self._refuted = True
            self._say(f"not proven: {why}; the engine is started anew for each export")
        else:
            keep_proof(key, {"engine": {**self._engine, **policy.facts}, "form": self._form})
            self._say("proven: log-probabilities are equal to the last digit; weights are exchanged from now on")
        return policy


def _identity(export: Path) -> tuple[str, Marks]:
    return os.path.abspath(export), marks_of(export)


def _name(export: Path) -> str:
    return export.name
