"""Grade answers: the code that one holds, run in rlbox's sandbox, and what the sandbox's replies say of it.

Code that a model wrote runs nowhere else.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rlbox.amounts import exact_duration_text
from rlbox.evaluation.rewards import SANDBOX_ERROR, classify_check_reply, extract_longest_code_block_or_bare_code
from rlbox.evaluation.suites import Problem, RunLimits, Suite
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.system.command import PIPE, start_command, wait_for_exit
from rlbox.system.http import HttpClient, NoFullResponseError
from rlbox.values import Command

SCORE_PROGRAM = Path(__file__).resolve().parent / "programs/score_answer.py"
_PROBE = "import platform\nprint(1 + 1)\nprint(platform.python_version())"
_SILENT_S = 3600.0
"""For a reply: a request waits for its turn, and a program for a processor; the sandbox's own limits end it."""
_STOP_TIMEOUT_S = 30.0
EXTRACTION_VERSION = 1
"""Counts up when extraction changes: other code out of the same answer is another score."""
SCORING_VERSION = 1
"""Counts up when a verdict may be another for the same answer."""
Outcome = Literal["accepted", "wrong", "failed", "timeout", "no-code", "sandbox"]
"""`failed`: an exception; `sandbox`: the sandbox itself failed, which says nothing about the answer and is no score."""
_PACKAGE_MISSING_STATUS = 3
_MAX_DETAIL = 300


@dataclass(frozen=True, kw_only=True)
class AnswerVerdict:
    """How one answer did: `passed` of `runs` runs were right, `clean` ended by themselves with exit status 0."""

    outcome: Outcome
    runs: int = 1
    passed: int = 0
    clean: int = 0
    detail: str = ""

    @property
    def all_runs_exited_zero(self) -> bool:
        return self.runs > 0 and self.clean == self.runs


class RunVerdict(NamedTuple):
    outcome: Outcome
    detail: str = ""


def judge_function_check_reply(reply: Mapping[str, Any]) -> AnswerVerdict:
    """Return the checker's verdict; a program whose answers were wrong has ended cleanly all the same."""
    verdict = classify_check_reply(reply)
    outcome: Any = verdict.outcome
    accepted, detail = outcome == "accepted", verdict.detail[-_MAX_DETAIL:]
    return AnswerVerdict(outcome=outcome, passed=accepted, clean=accepted or outcome == "wrong", detail=detail)


def judge_run_reply(reply: Mapping[str, Any], expected: str, shown_limit_s: float) -> RunVerdict:
    result = reply.get("run_result") or {}
    if reply.get("status") == SANDBOX_ERROR or not result:
        return RunVerdict("sandbox", str(reply.get("message", ""))[-_MAX_DETAIL:])
    if result.get("status") == "TimeLimitExceeded":
        return RunVerdict("timeout", f"more than {exact_duration_text(shown_limit_s)} of processor time, or asleep")
    if result.get("return_code") != 0:
        return RunVerdict("failed", str(result.get("stderr") or "").strip()[-_MAX_DETAIL:])
    printed = str(result.get("stdout") or "")
    if not has_same_words_by_line(printed, expected):
        return RunVerdict("wrong", f"printed {printed[:100]!r}, not {expected[:100]!r}")
    return RunVerdict("accepted")


def has_same_words_by_line(printed: str, expected: str) -> bool:
    """Whether two outputs hold the same words in the same lines, blank ends and empty lines aside."""
    return _split_lines(printed) == _split_lines(expected)


def _split_lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def parse_score_reply(reply: Mapping[str, Any]) -> AnswerVerdict:
    """Return how an answer did that was compared with the expected one; a comparison that failed is no score."""
    score = parse_last_stdout_json_or_empty(reply)
    if isinstance(score.get("score"), (int, float)):
        accepted = score["score"] >= 1
        return AnswerVerdict(outcome="accepted" if accepted else "wrong", passed=accepted, clean=1)
    result = reply.get("run_result") or {}
    if result.get("status") == "TimeLimitExceeded":
        return AnswerVerdict(outcome="timeout", detail="the comparison took longer than it may")
    status = result.get("return_code")
    is_broken = reply.get("status") == SANDBOX_ERROR or not result or status == _PACKAGE_MISSING_STATUS
    return AnswerVerdict(outcome="sandbox" if is_broken else "failed", detail=_describe_failed_score(reply))


def parse_last_stdout_json_or_empty(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last line (JSON) of `score_answer.py`; empty where there is none."""
    lines = str((reply.get("run_result") or {}).get("stdout") or "").strip().splitlines()
    if reply.get("status") == "Success" and lines:
        with contextlib.suppress(ValueError):
            score = parse_untrusted_json(lines[-1].encode())
            return score if isinstance(score, dict) else {}
    return {}


def _describe_failed_score(reply: Mapping[str, Any]) -> str:
    stderr = (reply.get("run_result") or {}).get("stderr")
    return str(reply.get("message") or stderr or "it said nothing").strip()[-_MAX_DETAIL:]


class SandboxClient:
    """The code sandbox at `url`; any number of threads may use it."""

    def __init__(self, url: str, http: HttpClient) -> None:
        self.url, self._http = url.rstrip("/"), http

    def grade_until_first_failure(self, problem: Problem, answer: str, limits: RunLimits) -> AnswerVerdict:
        """Return how `answer` does on `problem`; the first run that is not right ends it."""
        if problem.scorer:
            request = {"answer": answer, "expected": problem.expected}
            return parse_score_reply(self._score(request, limits))
        code = extract_longest_code_block_or_bare_code(answer)
        if not code:
            return AnswerVerdict(outcome="no-code", runs=len(problem.stdin_tests) or 1)
        if not problem.stdin_tests:
            return self._check_functions(problem, code, limits)
        passed = 0
        for stdin, expected in problem.stdin_tests:
            run = judge_run_reply(self._run(code, stdin, limits), expected, limits.run_s)
            if run.outcome != "accepted":
                clean = passed + (run.outcome == "wrong")
                return AnswerVerdict(
                    outcome=run.outcome, runs=passed + 1, passed=passed, clean=clean, detail=run.detail
                )
            passed += 1
        return AnswerVerdict(outcome="accepted", runs=passed, passed=passed, clean=passed)

    def fetch_scorer_versions(self, scorer_name_for_errors: str) -> dict[str, str]:
        """Return the versions of a scorer's packages; `NoFullResponseError` where the sandbox lacks them."""
        reply = self._score({}, RunLimits())
        score = parse_last_stdout_json_or_empty(reply)
        if not score:
            raise NoFullResponseError(
                _("{judge} does not work there: {told}").format(
                    judge=scorer_name_for_errors, told=_describe_failed_score(reply)
                ),
                "address",
                self.url,
            )
        return dict(score.get("packages") or {})

    def probe_strength_and_versions(self) -> dict[str, str]:
        """Return strength and version of the sandbox, and the version of its `python`.

        `NoFullResponseError` where it runs nothing.
        """
        reply = self._run(_PROBE, "", RunLimits(run_s=10))
        result = reply.get("run_result") or {}
        lines = str(result.get("stdout") or "").splitlines()
        if reply.get("status") == "Success" and lines[:1] == ["2"]:
            sandbox = reply.get("rlbox") or {}
            python = lines[1] if len(lines) > 1 else ""
            return {
                "strength": str(sandbox.get("strength", "")),
                "version": sandbox.get("version", ""),
                "python": python,
            }
        told = str(reply.get("message") or result.get("stderr") or reply).strip()[-300:]
        raise NoFullResponseError(_("it runs nothing: {told}").format(told=told), "address", self.url)

    def _score(self, request: dict[str, str], limits: RunLimits) -> dict[str, Any]:
        """Compare an answer that is no code, in a process with limits: what it writes may take for ever to read."""
        return self._run(SCORE_PROGRAM.read_text("utf-8"), json.dumps(request), limits)

    def _check_functions(self, problem: Problem, code: str, limits: RunLimits) -> AnswerVerdict:
        """Test functions: the program is the whole prompt with the answer behind it, as in the official harness."""
        request = {
            "code": f"{problem.preamble}\n{code}" if problem.preamble else code,
            "tests": problem.test_code,
            "before": problem.preamble,
            "names": list(problem.functions),
        }
        return judge_function_check_reply(self._post("/check", request, limits))

    def _run(self, code: str, stdin: str, limits: RunLimits) -> dict[str, Any]:
        return self._post("/run_code", {"code": code, "stdin": stdin}, limits)

    def _post(self, path: str, request: Mapping[str, Any], limits: RunLimits) -> dict[str, Any]:
        """Return the sandbox's reply; one that cannot be had is a reply with the status SandboxError."""
        content = {"run_timeout": limits.run_s, "memory_limit_MB": limits.memory_mb, "language": "python", **request}
        try:
            body = json.dumps(content).encode()
            with self._http.stream("POST", self.url + path, body=body, idle_timeout_s=_SILENT_S) as response:
                text = response.read_body()
            reply = parse_untrusted_json(text)
        except (NoFullResponseError, ValueError) as error:
            return {"status": SANDBOX_ERROR, "message": str(error)}
        if response.status != 200 or not isinstance(reply, dict):
            message = f"status {response.status}: {text[:200].decode(errors='replace')}"
            return {"status": SANDBOX_ERROR, "message": message}
        return reply


@contextlib.contextmanager
def run_sandbox_and_yield_url(python: str, max_cpu_s: float, max_memory_mb: int) -> Iterator[str]:
    """Yield the URL of a sandbox on loopback that runs as long as the block, by default with rlbox's interpreter.

    `NoFullResponseError` where programs cannot be isolated here, or it did not start; the text says why.
    """
    argv = [sys.executable, "-m", "rlbox.sandbox", "serve", "--port", "0", "--python", python or sys.executable]
    with tempfile.TemporaryDirectory(prefix="rlbox-sandbox-") as scratch:
        argv += ["--cpu-s", f"{max_cpu_s:g}", "--memory-mb", str(max_memory_mb), "--scratch", scratch]
        process = start_command(Command(argv=tuple(argv)), stdout=PIPE, die_with_parent=True)
        stdout = process.stdout
        try:  # it prints its strength, then where it listens
            strength, listens = (stdout.readline(), stdout.readline()) if stdout else (b"", b"")
            port = listens.rpartition(b":")[2].strip()
            if not port.isdigit():
                raise NoFullResponseError(_read_start_error(strength), "unreached")
            yield f"http://127.0.0.1:{int(port)}"
        finally:
            process.terminate()
            if wait_for_exit(process, _STOP_TIMEOUT_S) is None:
                process.kill()
                process.wait()
            if stdout:
                stdout.close()


def _read_start_error(strength: bytes) -> str:
    with contextlib.suppress(ValueError, AttributeError):
        if wrong := parse_untrusted_json(strength).get("wrong"):
            return str(wrong)
    return _("the code sandbox did not start")


class SolutionCheck(NamedTuple):
    """How many reference solutions a suite has, and the verdicts on those that are not accepted, by problem id."""

    solution_count: int
    rejected: dict[str, AnswerVerdict]


def grade_reference_solutions(suite: Suite, problems: Sequence[Problem], sandbox: SandboxClient) -> SolutionCheck:
    solved = [problem for problem in problems if problem.solution_as_model_answer_or_empty]

    def grade(problem: Problem) -> AnswerVerdict:
        return sandbox.grade_until_first_failure(problem, problem.solution_as_model_answer_or_empty, suite.limits)

    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        verdicts = dict(zip((problem.id for problem in solved), pool.map(grade, solved), strict=True))
    if errors := [verdict.detail for verdict in verdicts.values() if verdict.outcome == "sandbox"]:
        raise NoFullResponseError(errors[0], "unreached")
    rejected = {name: verdict for name, verdict in verdicts.items() if verdict.outcome != "accepted"}
    return SolutionCheck(len(solved), rejected)
