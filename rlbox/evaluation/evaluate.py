"""Evaluate checkpoints: ask for answers, grade them meanwhile, write the lock and the result of each."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from rlbox.evaluation.export import ExportDigests, HfExport, digest_export, read_file_stamps_recursively
from rlbox.evaluation.files import (
    AnswerStore,
    append_scores_to_history,
    compute_cache_key_by_suite,
    write_json,
    write_result_with_sample_answers,
)
from rlbox.evaluation.lock import EvaluationLock, digest_json
from rlbox.evaluation.model_server import ModelServerError, MultiServerModelClient, Prompt, ServeExport
from rlbox.evaluation.result import AnswerRecord, EvaluationResult, RecordsBySuite, build_result
from rlbox.evaluation.sandbox_client import EXTRACTION_VERSION, SCORING_VERSION, SandboxClient
from rlbox.evaluation.suites import Problem, Suite, SuiteProblems
from rlbox.i18n import _
from rlbox.system.http import NoFullResponseError
from rlbox.terminal import sanitize_for_terminal

_PROGRESS_INTERVAL_S = 10.0


class EvaluationError(Exception):
    """A checkpoint has no result; what was answered and graded before is kept, and is not asked again."""


def print_sanitized_line(line: str) -> None:
    sys.stdout.write(f"{sanitize_for_terminal(line)}\n")
    sys.stdout.flush()


@dataclass(frozen=True, kw_only=True)
class EvaluationTask:
    """An export to evaluate on suites; `extra_run_info` is written into its `run_info.json` besides."""

    export: HfExport
    suites: Sequence[SuiteProblems]
    extra_run_info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class EvaluationOutcome:
    """Results in the order of the tasks, and why exports have none, by name."""

    results: list[EvaluationResult] = field(default_factory=list)
    error_by_export: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CheckpointEvaluator:
    """`engine_for_lock` is what the lock says of the server beside its version; `concurrency_per_server` counts
    answers of one server.
    """

    sandbox: SandboxClient
    serve_export: ServeExport
    engine_for_lock: Mapping[str, Any]
    out_dir: Path
    concurrency_per_server: int
    say: Callable[[str], None] = print_sanitized_line

    def evaluate_and_write_all(self, tasks: Sequence[EvaluationTask]) -> EvaluationOutcome:
        """Evaluate one export after the other; one that fails does not stop the others."""
        outcome = EvaluationOutcome()
        for task in tasks:
            try:
                outcome.results.append(self._evaluate_and_write(task))
            except EvaluationError as error:
                outcome.error_by_export[task.export.name] = str(error)
        return outcome

    def _evaluate_and_write(self, task: EvaluationTask) -> EvaluationResult:
        """Return the result of one export, and write its files; `EvaluationError` where it has none."""
        export, began = task.export, time.monotonic()
        started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        count = sum(len(problems) for __, problems in task.suites)
        self.say(_("[evaluate] {name}: {count} problems").format(name=export.name, count=count))
        try:
            stamps, digests = read_file_stamps_recursively(export.path), digest_export(export.path)
            lock, records, servers = self._collect(task, digests)
            # a trainer may still write the export: answers of changed files belong to no weights that anyone could name
            if read_file_stamps_recursively(export.path) != stamps:
                raise EvaluationError(
                    _("the files of {path} changed while it was judged: judge it again").format(path=export.path)
                )
        except (ModelServerError, NoFullResponseError, OSError) as error:
            raise EvaluationError(str(error)) from error
        failed = [suite for suite, rows in records.items() if any(row["outcome"] == "sandbox" for row in rows)]
        if failed:
            raise EvaluationError(
                _("the code sandbox failed while {broken} ran: these have no score; run it again").format(
                    broken=", ".join(failed)
                )
            )
        result = build_result(export.name, export.step, lock, records)
        run_info = {
            "export": os.path.abspath(export.path),
            "began": started_at,
            "machine": {"host": platform.node(), "cores": os.cpu_count(), "kernel": platform.release()},
            "servers": servers,
            **task.extra_run_info,
            "took_s": round(time.monotonic() - began, 1),
        }
        write_result_with_sample_answers(self.out_dir / export.name, result, records, run_info)
        append_scores_to_history(self.out_dir, result, started_at)
        for suite, scores in result.scores.items():
            text = _("[evaluate] {name} {suite}: accepted@1 {accepted:.2%}, exec {executed:.2%} of {problems}").format(
                name=export.name,
                suite=suite,
                accepted=scores["accepted_at_1"],
                executed=scores["exec_success_rate"],
                problems=scores["problems"],
            )
            self.say(text)
        return result

    def _collect(self, task: EvaluationTask, digests: ExportDigests) -> tuple[EvaluationLock, RecordsBySuite, int]:
        """Return the lock, the graded answers, and how many servers gave them."""
        export, directory = task.export, self.out_dir / task.export.name
        scorers: dict[str, Any] = {
            suite.judge: self.sandbox.fetch_scorer_versions(suite.judge) for suite, __ in task.suites if suite.judge
        }
        sandbox = self.sandbox.probe_strength_and_versions()
        with self.serve_export(export.path, directory) as model:
            _require_model_of(export, model)
            servers = len(model.urls)
            concurrency = self.concurrency_per_server * servers
            prompts = _fetch_prompts(task.suites, model, concurrency)
            engine = {**self.engine_for_lock, **model.model.engine_facts}
            lock = _build_lock(task.suites, prompts, engine, sandbox, digests, scorers)
            write_json(directory / "lock.json", lock.as_json())
            answers = AnswerStore(directory, compute_cache_key_by_suite(lock))
            progress = ProgressPrinter(export.name, task.suites, self.say)
            records = _collect_and_grade(task.suites, prompts, model, self.sandbox, answers, progress, concurrency)
            return lock, records, servers


def _require_model_of(export: HfExport, model: MultiServerModelClient) -> None:
    """Refuse a server that says it serves another directory of this machine."""
    served = Path(model.model.loaded_from) if model.model.loaded_from else export.path
    if served.is_absolute() and served.is_dir() and not served.samefile(export.path):
        raise ModelServerError(
            _("{url} serves {served}, not {path}").format(url=model.urls[0], served=served, path=export.path)
        )


PromptsBySuite = Mapping[str, Mapping[str, Prompt]]
"""Suite name to problem id to prompt."""


def _fetch_prompts(suites: Sequence[SuiteProblems], model: MultiServerModelClient, concurrency: int) -> PromptsBySuite:
    with ThreadPoolExecutor(concurrency) as pool:
        return {
            suite.name: dict(
                zip(
                    (problem.id for problem in problems),
                    pool.map(model.tokenize_if_supported, [problem.message for problem in problems]),
                    strict=True,
                )
            )
            for suite, problems in suites
        }


def _build_lock(
    suites: Sequence[SuiteProblems],
    prompts: PromptsBySuite,
    engine: Mapping[str, Any],
    sandbox: Mapping[str, Any],
    digests: ExportDigests,
    scorers: Mapping[str, Any],
) -> EvaluationLock:
    """Return the lock; `scorers` maps what compares answers that are no code to the versions of its packages."""
    parts = {
        "suites": {
            suite.name: {
                "problems": len(problems),
                "sha256": digest_json([problem.to_digest_input() for problem in problems]),
            }
            for suite, problems in suites
        },
        "prompts": {suite.name: _describe_prompts(prompts[suite.name]) for suite, __ in suites},
        "decoding": {suite.name: suite.decoding.model_dump(mode="json") for suite, __ in suites},
        "tokenizer": {"sha256": digests.tokenizer_files, "chat_template": digests.chat_template_or_empty},
        "engine": dict(engine),
        "extraction": {"version": EXTRACTION_VERSION},
        "sandbox": {**sandbox, "limits": {suite.name: suite.limits.model_dump(mode="json") for suite, __ in suites}},
        "scoring": {"version": SCORING_VERSION, **scorers},
    }
    return EvaluationLock(parts=parts, subject={"weights": digests.weights_and_config})


def _describe_prompts(prompts: Mapping[str, Prompt]) -> dict[str, Any]:
    """Return one digest of all prompts, and whether it is of token ids or of text that the server makes them of."""
    as_tokens = all(prompt.token_ids_or_empty for prompt in prompts.values())
    content = {
        problem: list(prompt.token_ids_or_empty) if as_tokens else prompt.message for problem, prompt in prompts.items()
    }
    return {"as": "tokens" if as_tokens else "text", "sha256": digest_json(content)}


class ProgressPrinter:
    """Prints a bar as tqdm does, which live views read, for each suite at most every ten seconds."""

    def __init__(
        self,
        export: str,
        suites: Sequence[SuiteProblems],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._export, self._say, self._clock = export, say, clock
        self._totals = {suite.name: len(problems) * suite.decoding.samples for suite, problems in suites}
        self._done: Counter[str] = Counter()
        self._began: dict[str, float] = {}
        self._printed: dict[str, float] = {}
        self._lock = threading.Lock()

    def count_answer_and_print_if_due(self, suite: str) -> None:
        with self._lock:
            now = self._clock()
            self._done[suite] += 1
            done, total = self._done[suite], self._totals[suite]
            elapsed = now - self._began.setdefault(suite, now)
            if now - self._printed.setdefault(suite, now) < _PROGRESS_INTERVAL_S or done >= total:
                return
            self._printed[suite] = now
            passed, left = (timedelta(seconds=int(span)) for span in (elapsed, elapsed / done * (total - done)))
            text = _("Evaluating {export} {suite}: {percent}%| | {done}/{total} [{passed}<{left}]").format(
                export=self._export,
                suite=suite,
                percent=100 * done // total,
                done=done,
                total=total,
                passed=passed,
                left=left,
            )
            self._say(text)


def _collect_and_grade(
    suites: Sequence[SuiteProblems],
    prompts: PromptsBySuite,
    model: MultiServerModelClient,
    sandbox: SandboxClient,
    answers: AnswerStore,
    progress: ProgressPrinter,
    concurrency: int,
) -> RecordsBySuite:
    """Return the graded answers of each suite; `ModelServerError` where the server fails.

    A model is asked for every answer that is not stored; threads of their own grade answers meanwhile.
    """

    def grade(suite: Suite, problem: Problem, record: AnswerRecord) -> AnswerRecord:
        if "outcome" not in record:
            verdict = sandbox.grade_until_first_failure(problem, record["text"], suite.limits)
            graded = {**record, **asdict(verdict), "executed": verdict.all_runs_exited_zero}
            record = answers.replace_answer_with_cache_key(suite.name, graded)
        progress.count_answer_and_print_if_due(suite.name)
        return record

    def ask(suite: Suite, problem: Problem, number: int) -> Future[AnswerRecord]:
        record = answers.read_answer_dropping_sandbox_failure(suite.name, problem.id, number)
        if record is None:
            answer = asdict(model.generate(prompts[suite.name][problem.id], suite.decoding, number))
            record = {"problem": problem.id, "number": number, "ask": problem.message, **answer}
            record = answers.replace_answer_with_cache_key(suite.name, record)
        return graders.submit(grade, suite, problem, record)

    with ThreadPoolExecutor(os.cpu_count() or 1) as graders, ThreadPoolExecutor(concurrency) as askers:
        asked = {
            suite.name: [
                askers.submit(ask, suite, problem, number)
                for problem in problems
                for number in range(suite.decoding.samples)
            ]
            for suite, problems in suites
        }
        try:
            for future in as_completed(future for futures in asked.values() for future in futures):
                future.result()
        except BaseException:
            askers.shutdown(cancel_futures=True)
            raise
    return {name: [future.result().result() for future in futures] for name, futures in asked.items()}
