"""Several engines that serve the same export and share the work: whoever has least to do gets the next question."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlbox.evaluation.policy import ModelAnswer, Policy, PolicyError, Prompt
from rlbox.evaluation.serving.kept_up import KeptUp
from rlbox.evaluation.suite import Decoding


class Together:
    """Serves exports by all of some engines at once; each is started, exchanged and ended by a thread of its own.

    That thread lives as long as this: what it started would end with it.
    """

    def __init__(self, engines: Sequence[KeptUp]) -> None:
        self._engines = engines
        self._threads = [ThreadPoolExecutor(1) for _ in engines]

    def __call__(self, export: Path, folder: Path) -> contextlib.AbstractContextManager[SharedPolicy]:
        """As every `Serve`."""
        return self._served(export, folder)

    def begin(self, export: Path, folder: Path) -> None:
        """As `KeptUp.begin`."""
        pairs = zip(self._engines, self._threads, strict=True)
        for begun in [thread.submit(engine.begin, export, folder) for engine, thread in pairs]:
            begun.result()

    def close(self) -> None:
        """End what is up."""
        for ended in [thread.submit(engine.close) for engine, thread in zip(self._engines, self._threads, strict=True)]:
            ended.result()
        for thread in self._threads:
            thread.shutdown()

    @contextlib.contextmanager
    def _served(self, export: Path, folder: Path) -> Iterator[SharedPolicy]:
        with contextlib.ExitStack() as stack:
            blocks = [engine(export, folder) for engine in self._engines]
            ready = [thread.submit(block.__enter__) for block, thread in zip(blocks, self._threads, strict=True)]
            failed: list[BaseException] = []
            for block, future in zip(blocks, ready, strict=True):
                if error := future.exception():
                    failed.append(error)
                else:
                    stack.push(block)
            if failed:
                raise failed[0]
            yield SharedPolicy([future.result() for future in ready])


class SharedPolicy:
    """The model behind several servers, as `Policy` is that behind one; `servers` is how many there are.

    Raises `PolicyError` where they are not the same engine.
    """

    def __init__(self, members: Sequence[Policy]) -> None:
        first = members[0]
        self.url, self.root, self.facts, self.loaded = first.url, first.root, first.facts, first.loaded
        for one in members[1:]:
            if one.facts != first.facts:
                raise PolicyError(f"{one.url} is another engine than {first.url}")
        self.servers = len(members)
        self._members, self._busy, self._lock = members, [0] * len(members), threading.Lock()

    def prompt(self, ask: str) -> Prompt:
        """As `Policy.prompt`; what one of them makes of a message, all do."""
        return self._members[0].prompt(ask)

    def answer(self, prompt: Prompt, decoding: Decoding, number: int) -> ModelAnswer:
        """As `Policy.answer`, by whoever has least to do."""
        with self._lock:
            at = min(range(self.servers), key=self._busy.__getitem__)
            self._busy[at] += 1
        try:
            return self._members[at].answer(prompt, decoding, number)
        finally:
            with self._lock:
                self._busy[at] -= 1
