"""Judge checkpoints: ask for answers, judge them meanwhile, write the lock and the result of each."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlbox.evaluation.export import Export, digest_export, read_file_stamps
from rlbox.evaluation.lock import EvaluationLock, content_digest
from rlbox.evaluation.model_client import Model, ModelServerError, Prompt
from rlbox.evaluation.model_server import ServeExport
from rlbox.evaluation.problems import Problem
from rlbox.evaluation.result import EvaluationResult
from rlbox.evaluation.result_files import (
    AnswerFiles,
    AnswerRecord,
    AnswerRecords,
    append_history,
    build_result,
    make_answer_keys,
    write_json,
    write_result_files,
)
from rlbox.evaluation.sandbox_client import SandboxClient
from rlbox.evaluation.suites import Suite, describe_suite
from rlbox.evaluation.verdict import EXTRACTION_VERSION, SCORING_VERSION
from rlbox.evaluation.view import print_line
from rlbox.i18n import _
from rlbox.system.http import NoResponseError

EVERY_S = 10.0
"""Seconds between two lines, at least."""


class ProgressLine:
    """Counts from its making on; `whole` is how many there are."""

    def __init__(self, label: str, whole: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._label, self._whole, self._clock = label, whole, clock
        self._began = self._told = clock()

    def line(self, done: int) -> str:
        """Return a bar as tqdm prints it, or nothing where one was told a moment ago or the end is reached."""
        now = self._clock()
        if now - self._told < EVERY_S or done >= self._whole:
            return ""
        self._told, took = now, now - self._began
        left = format_clock(took / done * (self._whole - done))
        percent = 100 * done // self._whole
        return f"{self._label}: {percent}%| | {done}/{self._whole} [{format_clock(took)}<{left}]"


def format_clock(seconds: float) -> str:
    """Return a span as tqdm writes it: 0:01:05."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def fetch_prompts(
    suites: Sequence[tuple[Suite, Sequence[Problem]]], policy: Model, at_once: int
) -> list[PromptedSuite]:
    """Return suites with the prompts that the server makes of their problems."""
    found = []
    with ThreadPoolExecutor(at_once) as pool:
        for suite, problems in suites:
            made = pool.map(lambda problem: policy.prompt(problem.ask), problems)
            prompts = dict(zip((problem.id for problem in problems), made, strict=True))
            found.append(PromptedSuite(suite=suite, problems=problems, prompts=prompts))
    return found


def build_lock(
    chosen: Sequence[PromptedSuite],
    engine: Mapping[str, Any],
    sandbox: Mapping[str, Any],
    export: tuple[Mapping[str, Any], Mapping[str, Any]],
    judges: Mapping[str, Any],
) -> EvaluationLock:
    """Return the lock: `export` is the subject and the tokenizer's part of what is judged.

    `judges` are the packages, with their versions, of what compares answers that are no code.
    """
    subject, tokenizer = export
    facts = {one.suite.name: describe_suite(one.suite, one.problems) for one in chosen}
    parts = {
        "suites": {name: {key: row[key] for key in ("problems", "sha256")} for name, row in facts.items()},
        "prompts": {one.suite.name: _prompts(one.prompts) for one in chosen},
        "decoding": {name: row["decoding"] for name, row in facts.items()},
        "tokenizer": dict(tokenizer),
        "engine": dict(engine),
        "extraction": {"version": EXTRACTION_VERSION},
        "sandbox": {**sandbox, "limits": {name: row["limits"] for name, row in facts.items()}},
        "scoring": {"version": SCORING_VERSION, **judges},
    }
    return EvaluationLock(parts=parts, subject=subject)


def _prompts(prompts: Mapping[str, Prompt]) -> dict[str, Any]:
    """Return one digest of all prompts, and whether it is of token ids or of text that the server makes them of."""
    as_tokens = all(prompt.tokens for prompt in prompts.values())
    asked = {name: list(prompt.tokens) if as_tokens else prompt.text for name, prompt in prompts.items()}
    return {"as": "tokens" if as_tokens else "text", "sha256": content_digest(asked)}


ProgressCallback = Callable[[str, int, int], None]
"""Called with a suite's name, how many answers of it are judged, and how many there are."""


@dataclass(frozen=True, kw_only=True)
class AnswerTask:
    suite: Suite
    problem: Problem
    number: int

    @property
    def key(self) -> tuple[str, str, int]:
        return self.suite.name, self.problem.id, self.number


@dataclass(frozen=True, kw_only=True)
class PromptedSuite:
    """A suite with its problems and their prompts, by id."""

    suite: Suite
    problems: Sequence[Problem]
    prompts: Mapping[str, Prompt]


def run_evaluation(
    chosen: Sequence[PromptedSuite],
    policy: Model,
    sandbox: SandboxClient,
    kept: AnswerFiles,
    *,
    at_once: int,
    tell: ProgressCallback,
) -> AnswerRecords:
    """Ask for every answer, `at_once` at a time, judged as they come; return the rows of all.

    Raises
    ------
    PolicyError
        The server failed; what was answered and judged before is kept.
    """
    tasks = [
        AnswerTask(suite=one.suite, problem=problem, number=number)
        for one in chosen
        for problem in one.problems
        for number in range(one.suite.decoding.samples)
    ]
    prompts = {(one.suite.name, name): prompt for one in chosen for name, prompt in one.prompts.items()}
    return _AnsweredRound(tasks, sandbox, kept, _Counts(tasks, tell)).carry_out(policy, prompts, at_once)


class _AnsweredRound:
    """One round over all answers that are wanted; the first failure of the server ends it.

    What is answered is judged by threads of its own: the server is asked meanwhile.
    """

    def __init__(self, tasks: Sequence[AnswerTask], sandbox: SandboxClient, kept: AnswerFiles, counts: _Counts) -> None:
        self._tasks, self._sandbox, self._kept, self._counts = tasks, sandbox, kept, counts
        self._judges = ThreadPoolExecutor(os.cpu_count() or 1)
        self._found: dict[tuple[str, str, int], AnswerRecord | Future[AnswerRecord]] = {}
        self._stop = threading.Event()

    def carry_out(self, policy: Model, prompts: Mapping[tuple[str, str], Prompt], at_once: int) -> AnswerRecords:
        """Ask for what is not known; return the rows of each suite once all is judged."""
        with self._judges, ThreadPoolExecutor(at_once) as askers:
            try:
                for future in as_completed(askers.submit(self._ask, policy, prompts, task) for task in self._tasks):
                    future.result()
            except BaseException:
                self._stop.set()
                raise
        rows: AnswerRecords = {}
        for task in self._tasks:
            row = self._found[task.key]
            rows.setdefault(task.suite.name, []).append(row.result() if isinstance(row, Future) else row)
        return rows

    def _ask(self, policy: Model, prompts: Mapping[tuple[str, str], Prompt], task: AnswerTask) -> None:
        """Have the row that is kept, or what will be one; nothing where the round has ended."""
        known = self._kept.read(task.suite.name, task.problem.id, task.number)
        if known and "outcome" in known:
            self._found[task.key] = known
            self._counts.one_more(task.suite.name)
            return
        if self._stop.is_set():
            return
        try:
            known = known or self._answer(policy, prompts[task.suite.name, task.problem.id], task)
        except BaseException:
            self._stop.set()
            raise
        self._found[task.key] = self._judges.submit(self._judge, task, known)

    def _answer(self, policy: Model, prompt: Prompt, task: AnswerTask) -> AnswerRecord:
        answer = asdict(policy.answer(prompt, task.suite.decoding, task.number))
        known = {"problem": task.problem.id, "number": task.number, "ask": task.problem.ask}
        return self._kept.write(task.suite.name, {**known, **answer})

    def _judge(self, task: AnswerTask, asked: AnswerRecord) -> AnswerRecord:
        verdict = self._sandbox.judge(task.problem, asked["text"], task.suite.limits)
        row = self._kept.write(task.suite.name, {**asked, **asdict(verdict), "executed": verdict.executed})
        self._counts.one_more(task.suite.name)
        return row


class _Counts:
    def __init__(self, tasks: Sequence[AnswerTask], tell: ProgressCallback) -> None:
        self._tell, self._lock = tell, threading.Lock()
        self._whole: dict[str, int] = {}
        self._done: dict[str, int] = {}
        for task in tasks:
            self._whole[task.suite.name] = self._whole.get(task.suite.name, 0) + 1

    def one_more(self, suite: str) -> None:
        with self._lock:
            self._done[suite] = self._done.get(suite, 0) + 1
            self._tell(suite, self._done[suite], self._whole[suite])


SuiteProblems = Sequence[tuple[Suite, Sequence[Problem]]]


class JudgingError(Exception):
    """A checkpoint has no result; the text says why."""


@dataclass(frozen=True, kw_only=True)
class CheckpointJudge:
    """What checkpoints are judged with; `engine` is what the lock says of the server beside its version."""

    sandbox: SandboxClient
    serve: ServeExport
    engine: dict[str, Any]
    out: Path
    at_once: int
    say: Callable[[str], None] = print_line

    def judge(self, export: Export, suites: SuiteProblems, facts: Mapping[str, Any] | None = None) -> EvaluationResult:
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
            marks, contents = read_file_stamps(export.path), digest_export(export.path)
            strength, judges = self._judged_by(suites)
            with self.serve(export.path, folder) as policy:
                _same_weights(policy, export)
                at_once, servers = self.at_once * policy.servers, policy.servers
                chosen = fetch_prompts(suites, policy, at_once)
                lock = build_lock(chosen, {**self.engine, **policy.facts}, strength, contents, judges)
                write_json(folder / "lock.json", lock.as_json())
                kept, tell = AnswerFiles(folder, make_answer_keys(lock)), self._tell(export.name)
                rows = run_evaluation(chosen, policy, self.sandbox, kept, at_once=at_once, tell=tell)
        except (ModelServerError, NoResponseError, OSError) as error:
            raise JudgingError(str(error)) from error
        # a trainer may still write the export: answers of changed files belong to no weights that anyone could name
        if read_file_stamps(export.path) != marks:
            raise JudgingError(
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
            raise JudgingError(
                _("the code sandbox failed while {broken} ran: these have no score; run it again").format(
                    broken=", ".join(broken)
                )
            )
        result = build_result(export.name, export.step, lock, rows)
        write_result_files(self.out / export.name, result, rows, {**run, "took_s": round(time.monotonic() - began, 1)})
        append_history(self.out, result, str(run["began"]))
        for suite, row in result.scores.items():
            self.say(
                f"[evaluate] {export.name} {suite}: accepted@1 {row['accepted_at_1']:.2%}, "
                f"exec {row['exec_success_rate']:.2%} of {row['problems']}",
            )
        return result

    def _judged_by(self, suites: SuiteProblems) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the sandbox is, and the versions of what compares answers that are no code."""
        judges = {str(suite.judge): self.sandbox.packages(suite.judge) for suite, __ in suites if suite.judge}
        return self.sandbox.probe(), judges

    def _tell(self, name: str) -> Callable[[str, int, int], None]:
        """Return what says now and then how far a suite is, as a bar of tqdm's, which live views read."""
        bars: dict[str, ProgressLine] = {}

        def tell(suite: str, done: int, whole: int) -> None:
            bar = bars.setdefault(suite, ProgressLine(f"Evaluating {name} {suite}", whole))
            if line := bar.line(done):
                self.say(line)

        return tell


def _same_weights(policy: Model, export: Export) -> None:
    """Refuse a server that says it serves another folder of this machine (P195)."""
    served = Path(policy.root) if policy.root else export.path
    if served.is_absolute() and served.is_dir() and not served.samefile(export.path):
        raise ModelServerError(
            _("{url} serves {served}, not {path} (P195)").format(url=policy.url, served=served, path=export.path)
        )


@dataclass(frozen=True, kw_only=True)
class JudgingTask:
    """An export that is to be judged on suites; `facts` stand in its `run_info.json` besides."""

    export: Export
    suites: SuiteProblems
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class JudgingOutcome:
    """What came of it: results in the order they were wanted, and why others have none, by name."""

    results: list[EvaluationResult] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def judge_checkpoints(judging: CheckpointJudge, wanted: Sequence[JudgingTask]) -> JudgingOutcome:
    """Judge one after the other; one that fails does not stop the others (P182)."""
    judged = JudgingOutcome()
    for one in wanted:
        try:
            judged.results.append(judging.judge(one.export, one.suites, one.facts))
        except JudgingError as error:
            judged.failed[one.export.name] = str(error)
    return judged
