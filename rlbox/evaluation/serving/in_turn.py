"""Judge checkpoints one after the other: verdicts on one are waited for while the next one is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from rlbox.evaluation.export import Export
from rlbox.evaluation.judge import Judging, NotJudged, Suites
from rlbox.evaluation.result import EvaluationResult


@dataclass(frozen=True, kw_only=True)
class WantedResult:
    """An export that is to be judged on suites; `facts` stand in its `run_info.json` besides."""

    export: Export
    suites: Suites
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class JudgedExports:
    """What came of it: results in the order they were wanted, and why others have none, by name."""

    results: list[EvaluationResult] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def judge_all(judging: Judging, wanted: Sequence[WantedResult]) -> JudgedExports:
    """Judge all; one that fails does not stop the others (P182)."""
    found: dict[str, Future[EvaluationResult]] = {}
    judged = JudgedExports()
    with ThreadPoolExecutor(1) as finishing:
        for one, following in zip(wanted, [*wanted[1:], None], strict=True):
            _read_ahead(judging, one, following)
            try:
                found[one.export.name] = finishing.submit(judging.begin(one.export, one.suites, one.facts))
            except NotJudged as error:
                judged.failed[one.export.name] = str(error)
        for name, future in found.items():
            try:
                judged.results.append(future.result())
            except NotJudged as error:
                judged.failed[name] = str(error)
    return judged


def _read_ahead(judging: Judging, one: WantedResult, following: WantedResult | None) -> None:
    """Begin to read an export and the one behind it; what is wrong with them is said when they are judged."""
    for each in (one, following):
        with contextlib.suppress(OSError):
            if each:
                judging.contents.ahead(each.export.path)
