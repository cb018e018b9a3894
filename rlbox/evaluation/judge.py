"""Judge checkpoints one after the other: a result for each, whatever happened to the others (P182)."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlbox.evaluation.bar import CountedBar
from rlbox.evaluation.evaluate import evaluate
from rlbox.evaluation.export import Export
from rlbox.evaluation.kept import KeptRows, rows_keys
from rlbox.evaluation.locking import ask_for_prompts, make_lock
from rlbox.evaluation.outputs import append_history, make_result, write_json, write_outputs
from rlbox.evaluation.policy import Answering, PolicyError
from rlbox.evaluation.problem import EvalProblem
from rlbox.evaluation.result import EvaluationResult
from rlbox.evaluation.sandbox import Sandbox
from rlbox.evaluation.say import say
from rlbox.evaluation.server import Serve
from rlbox.evaluation.suite import Suite
from rlbox.evaluation.weights import export_facts, marks_of
from rlbox.i18n import _
from rlbox.system.http import NoResponseError

Suites = Sequence[tuple[Suite, Sequence[EvalProblem]]]


class NotJudged(Exception):
    """A checkpoint has no result; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Judging:
    """What checkpoints are judged with; `engine` is what the lock says of the server beside its version."""

    sandbox: Sandbox
    serve: Serve
    engine: dict[str, Any]
    out: Path
    at_once: int
    say: Callable[[str], None] = say

    def judge(self, export: Export, suites: Suites, facts: Mapping[str, Any] | None = None) -> EvaluationResult:
        """Return the result of one checkpoint, and write its files; `facts` are what `run_info.json` says besides.

        Raises
        ------
        NotJudged
            What was judged before is kept, and is not asked again.
        """
        began, stamp = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        folder = self.out / export.name
        self.say(f"[evaluate] {export.name}: {sum(len(problems) for __, problems in suites)} problems")
        try:
            marks, contents = marks_of(export.path), export_facts(export.path)
            strength, judges = self._judged_by(suites)
            with self.serve(export.path, folder) as policy:
                _same_weights(policy, export)
                at_once, servers = self.at_once * policy.servers, policy.servers
                chosen = ask_for_prompts(suites, policy, at_once)
                lock = make_lock(chosen, {**self.engine, **policy.facts}, strength, contents, judges)
                write_json(folder / "lock.json", lock.as_json())
                kept, tell = KeptRows(folder, rows_keys(lock)), self._tell(export.name)
                rows = evaluate(chosen, policy, self.sandbox, kept, at_once=at_once, tell=tell)
        except (PolicyError, NoResponseError, OSError) as error:
            raise NotJudged(str(error)) from error
        if marks_of(export.path) != marks:
            raise NotJudged(
                _("the files of {path} changed while it was judged: judge it again").format(path=export.path)
            )
        run = {
            "export": os.path.abspath(export.path),
            "began": stamp,
            "machine": {"host": platform.node(), "cores": os.cpu_count(), "kernel": platform.release()},
            "servers": servers,
            **(facts or {}),
        }
        if broken := [name for name, of in rows.items() if any(row["outcome"] == "sandbox" for row in of)]:
            raise NotJudged(
                _("the code sandbox failed while {broken} ran: these have no score; run it again").format(
                    broken=", ".join(broken)
                )
            )
        result = make_result(export.name, export.step, lock, rows)
        write_outputs(self.out / export.name, result, rows, {**run, "took_s": round(time.monotonic() - began, 1)})
        append_history(self.out, result, str(run["began"]))
        for suite, row in result.scores.items():
            self.say(
                f"[evaluate] {export.name} {suite}: accepted@1 {row['accepted_at_1']:.2%}, "
                f"exec {row['exec_success_rate']:.2%} of {row['problems']}",
            )
        return result

    def _judged_by(self, suites: Suites) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the sandbox is, and the versions of what compares answers that are no code."""
        judges = {str(suite.judge): self.sandbox.packages(suite.judge) for suite, __ in suites if suite.judge}
        return self.sandbox.probe(), judges

    def _tell(self, name: str) -> Callable[[str, int, int], None]:
        """Return what says now and then how far a suite is, as a bar of tqdm's, which live views read."""
        bars: dict[str, CountedBar] = {}

        def tell(suite: str, done: int, whole: int) -> None:
            bar = bars.setdefault(suite, CountedBar(f"Evaluating {name} {suite}", whole))
            if line := bar.line(done):
                self.say(line)

        return tell


def _same_weights(policy: Answering, export: Export) -> None:
    """Refuse a server that says it serves another folder of this machine (P195)."""
    served = Path(policy.root) if policy.root else export.path
    if served.is_absolute() and served.is_dir() and not served.samefile(export.path):
        raise PolicyError(
            _("{url} serves {served}, not {path} (P195)").format(url=policy.url, served=served, path=export.path)
        )


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
    """Judge one after the other; one that fails does not stop the others (P182)."""
    judged = JudgedExports()
    for one in wanted:
        try:
            judged.results.append(judging.judge(one.export, one.suites, one.facts))
        except NotJudged as error:
            judged.failed[one.export.name] = str(error)
    return judged
