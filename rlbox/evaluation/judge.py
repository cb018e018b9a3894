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
from rlbox.evaluation.evaluate import AnsweredRound, begin_evaluation
from rlbox.evaluation.export import Export
from rlbox.evaluation.kept import KeptRows, rows_keys
from rlbox.evaluation.lock import EvaluationLock, canonical
from rlbox.evaluation.locking import ask_for_prompts, make_lock, parts_but_prompts
from rlbox.evaluation.outputs import (
    SUMMARY,
    append_history,
    began_of,
    in_history,
    make_result,
    read_summary,
    write_json,
    write_outputs,
)
from rlbox.evaluation.policy import Answering, PolicyError
from rlbox.evaluation.problem import EvalProblem
from rlbox.evaluation.result import EvaluationResult
from rlbox.evaluation.sandbox import Sandbox
from rlbox.evaluation.say import say
from rlbox.evaluation.server import Serve
from rlbox.evaluation.suite import Suite
from rlbox.evaluation.weights import Contents, export_facts, marks_of
from rlbox.system.http import NoResponseError

Suites = Sequence[tuple[Suite, Sequence[EvalProblem]]]


class NotJudged(Exception):
    """A checkpoint has no result; the text says why."""


class ChangedMeanwhile(NotJudged):
    """Its files changed while it was judged: what was answered is of nobody knows which weights."""


@dataclass(frozen=True, kw_only=True)
class Judging:
    """What checkpoints are judged with; `engine` is what the lock says of the server beside its version.

    `overlap` is, suite by suite, what of it stands in the training data; see `find_overlap`.
    """

    sandbox: Sandbox
    serve: Serve
    engine: dict[str, Any]
    out: Path
    at_once: int
    overlap: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    say: Callable[[str], None] = say
    contents: Contents = field(default_factory=Contents)

    def judge(self, export: Export, suites: Suites, facts: Mapping[str, Any] | None = None) -> EvaluationResult:
        """Return the result of one checkpoint, and write its files; `facts` are what `run_info.json` says besides.

        Raises
        ------
        NotJudged
            What was judged before is kept, and is not asked again.
        """
        return self.begin(export, suites, facts)()

    def begin(
        self, export: Export, suites: Suites, facts: Mapping[str, Any] | None = None
    ) -> Callable[[], EvaluationResult]:
        """As `judge`, but return when all is answered: what is returned waits for the rest of the verdicts.

        Its engine can serve another export meanwhile. Both raise `NotJudged`.
        """
        began, stamp = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        folder = self.out / export.name
        self.say(f"[evaluate] {export.name}: {sum(len(problems) for _, problems in suites)} problems")
        try:
            marks, contents = self.contents.take(export.path)
            strength, judges = self._judged_by(suites)
            with self.serve(export.path, folder) as policy:
                _same_weights(policy, export)
                at_once, how = self.at_once * policy.servers, _how(policy)
                chosen = ask_for_prompts(suites, policy, at_once)
                lock = make_lock(chosen, {**self.engine, **policy.facts}, strength, contents.result(), judges)
                write_json(folder / "lock.json", lock.as_json())
                kept, tell = KeptRows(folder, rows_keys(lock)), self._tell(export.name)
                asked = begin_evaluation(chosen, policy, self.sandbox, kept, at_once=at_once, tell=tell)
        except (PolicyError, NoResponseError, OSError) as error:
            raise NotJudged(str(error)) from error
        if marks_of(export.path) != marks:
            asked.close()
            raise ChangedMeanwhile(f"the files of {export.path} changed while it was judged: judge it again")
        run = {
            "export": os.path.abspath(export.path),
            "began": stamp,
            "machine": {"host": platform.node(), "cores": os.cpu_count(), "kernel": platform.release()},
            **how,
            **(facts or {}),
        }
        return lambda: self._finish(export, lock, asked, run, began)

    def _finish(
        self, export: Export, lock: EvaluationLock, asked: AnsweredRound, run: Mapping[str, Any], began: float
    ) -> EvaluationResult:
        """Wait for the verdicts and write the files of the result."""
        try:
            rows = asked.rows()
        except (NoResponseError, OSError) as error:
            raise NotJudged(str(error)) from error
        if broken := [name for name, of in rows.items() if any(row["outcome"] == "sandbox" for row in of)]:
            raise NotJudged(f"the code sandbox failed while {', '.join(broken)} ran: these have no score; run it again")
        result = make_result(export.name, export.step, lock, rows, self.overlap)
        write_outputs(self.out / export.name, result, rows, {**run, "took_s": round(time.monotonic() - began, 1)})
        append_history(self.out, result, str(run["began"]))
        for suite, row in result.scores.items():
            self.say(
                f"[evaluate] {export.name} {suite}: accepted@1 {row['accepted_at_1']:.2%}, "
                f"exec {row['exec_success_rate']:.2%} of {row['problems']}",
            )
        return result

    def kept(self, export: Export, suites: Suites) -> EvaluationResult | None:
        """Return the result that is there, if a server would have to be asked for nothing more.

        It is of these weights, and of a lock that says the same in all that is known without a server: its version
        and its prompts are those of the time when it was judged.
        """
        try:
            found = read_summary(self.out / export.name / SUMMARY)
            subject, tokenizer = export_facts(export.path)
            strength, judges = self._judged_by(suites)
        except (ValueError, OSError, NoResponseError):
            return None
        wanted = parts_but_prompts(suites, self.engine, strength, tokenizer, judges)
        parts = dict(found.lock.parts)
        parts["engine"] = {name: parts.get("engine", {}).get(name) for name in self.engine}
        same = all(canonical(parts.get(name)) == canonical(part) for name, part in wanted.items())
        whole = all(found.scores.get(suite, {}).get("overlap") == known for suite, known in self.overlap.items())
        if not same or not whole or found.lock.subject != subject or found.step != export.step:
            return None
        if not in_history(self.out, found):  # killed between the result and its line
            append_history(self.out, found, began_of(self.out / export.name))
        return found

    def _judged_by(self, suites: Suites) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the sandbox is, and the versions of what compares answers that are no code."""
        judges = {str(suite.judge): self.sandbox.packages(suite.judge) for suite, _ in suites if suite.judge}
        return self.sandbox.probe(), judges

    def _tell(self, name: str) -> Callable[[str, int, int], None]:
        """Return what says now and then how far a suite is, as a bar of tqdm's, which live views read."""
        bars: dict[str, CountedBar] = {}

        def tell(suite: str, done: int, whole: int) -> None:
            bar = bars.setdefault(suite, CountedBar(f"Evaluating {name} {suite}", whole))
            if line := bar.line(done):
                self.say(line)

        return tell


def _how(policy: Answering) -> dict[str, Any]:
    """Return what is known of the servers that answer and decides nothing: how many, how the weights came in."""
    return {"servers": policy.servers, "weights": policy.loaded} if policy.loaded else {}


def _same_weights(policy: Answering, export: Export) -> None:
    """Refuse a server that says it serves another folder of this machine (P195)."""
    served = Path(policy.root) if policy.root else export.path
    if served.is_absolute() and served.is_dir() and not served.samefile(export.path):
        raise PolicyError(f"{policy.url} serves {served}, not {export.path} (P195)")
