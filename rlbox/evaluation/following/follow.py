"""Judge checkpoints as they appear, until what writes them has ended; typed again after a kill, it goes on.

A checkpoint counts when nothing of its export is missing and nothing of it has changed for a while. One that changes
while it is judged has no result then, and is looked at again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rlbox.evaluation.following.appearing import Appearing, find_appearing
from rlbox.evaluation.judge import ChangedMeanwhile, Judging, NotJudged, Suites
from rlbox.evaluation.result import EvaluationResult
from rlbox.evaluation.weights import Marks

_POLL_S = 5.0


@dataclass(kw_only=True)
class Followed:
    """What came of it: the results by name, and why others have none."""

    results: dict[str, EvaluationResult] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


class Following:
    """Follows the checkpoints right below `folder`.

    Parameters
    ----------
    ended
        Whether what writes them has ended; asked before each look at the folder.
    settle_s
        How long nothing of an export may have changed before it counts, in seconds.
    """

    def __init__(
        self, folder: Path, judging: Judging, suites: Suites, ended: Callable[[], bool], settle_s: float
    ) -> None:
        self._folder, self._judging, self._suites = folder, judging, suites
        self._ended, self._settle_s = ended, settle_s
        self._seen: dict[Path, tuple[Marks, float]] = {}
        self._done: dict[Path, Marks] = {}
        self._names: dict[str, Path] = {}

    def follow(self) -> Followed:
        """Judge until the end, and return what was found."""
        found = Followed()
        while True:
            over, looked = self._ended(), find_appearing(self._folder)
            ready = next((one for one in looked if self._ready(one)), None)
            if ready:
                self._judge(ready, found)
            elif over and all(self._settled(one) for one in looked):
                found.failed |= dict(self._torn(looked, found))
                return found
            else:
                time.sleep(min(_POLL_S, self._settle_s / 2))

    def _settled(self, one: Appearing) -> bool:
        """Whether nothing of it has changed for long enough."""
        now = time.monotonic()
        marks, since = self._seen.get(one.folder, ((), now))
        if marks != one.marks:
            since = now
        self._seen[one.folder] = (one.marks, since)
        return now - since >= self._settle_s

    def _ready(self, one: Appearing) -> bool:
        return self._settled(one) and not one.lacks and self._done.get(one.folder) != one.marks

    def _judge(self, one: Appearing, found: Followed) -> None:
        if one.export is None:
            return
        name = one.export.name
        if (other := self._names.setdefault(name, one.folder)) != one.folder:
            found.failed[one.folder.name] = f"it has the name {name}, as {other.name} has"
            self._done[one.folder] = one.marks
            return
        try:
            known = self._judging.kept(one.export, self._suites)
            found.results[name] = known or self._judging.judge(one.export, self._suites)
            found.failed.pop(name, None)
        except ChangedMeanwhile:
            del self._seen[one.folder]
            return
        except NotJudged as error:
            found.failed[name] = str(error)
        self._done[one.folder] = one.marks

    def _torn(self, looked: list[Appearing], found: Followed) -> Iterator[tuple[str, str]]:
        """Yield what is not whole though nobody writes it any more."""
        for one in looked:
            if one.lacks:
                yield one.export.name if one.export else one.folder.name, one.lacks
