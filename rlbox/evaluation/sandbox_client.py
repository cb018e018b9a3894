"""Run and grade answers in rlbox's sandbox: code that a model wrote runs nowhere else."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from rlbox.evaluation.suites import Problem, RunLimits, Suite
from rlbox.evaluation.verdict import (
    SANDBOX_ERROR,
    AnswerVerdict,
    describe_failed_score,
    extract_longest_code_block,
    parse_check_reply,
    parse_last_json_or_empty,
    parse_run_reply,
    parse_score_reply,
)
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.command import PIPE, start_command, wait_for_exit
from rlbox.system.http import HttpClient, NoResponseError
from rlbox.values import Command

SCORE_PROGRAM = Path(__file__).resolve().parent / "programs/score_answer.py"
_PROBE = "import platform\nprint(1 + 1)\nprint(platform.python_version())"
_SILENT_S = 3600.0
"""For a reply: a request waits for its turn, and a program for a processor; the sandbox's own limits end it."""
_STOP_TIMEOUT_S = 30.0


class SandboxClient:
    """The code sandbox at `url`; any number of threads may use it."""

    def __init__(self, url: str, http: HttpClient) -> None:
        self.url, self._http = url.rstrip("/"), http

    def grade(self, problem: Problem, answer: str, limits: RunLimits) -> AnswerVerdict:
        """Return how `answer` does on `problem`; the first run that is not right ends it."""
        if problem.scorer:
            request = {"answer": answer, "expected": problem.expected}
            return parse_score_reply(self._score(request, limits))
        code = extract_longest_code_block(answer)
        if not code:
            return AnswerVerdict(outcome="no-code", runs=len(problem.stdin_tests) or 1)
        if not problem.stdin_tests:
            return self._check_functions(problem, code, limits)
        passed = 0
        for stdin, expected in problem.stdin_tests:
            run = parse_run_reply(self._run(code, stdin, limits), expected, limits.run_s)
            if run.outcome != "accepted":
                clean = passed + (run.outcome == "wrong")
                return AnswerVerdict(
                    outcome=run.outcome, runs=passed + 1, passed=passed, clean=clean, detail=run.detail
                )
            passed += 1
        return AnswerVerdict(outcome="accepted", runs=passed, passed=passed, clean=passed)

    def read_scorer_versions(self, scorer: str) -> dict[str, str]:
        """Return the versions of a scorer's packages; `NoResponseError` where the sandbox's interpreter lacks them."""
        reply = self._score({}, RunLimits())
        score = parse_last_json_or_empty(reply)
        if not score:
            raise NoResponseError(
                _("{judge} does not work there: {told}").format(judge=scorer, told=describe_failed_score(reply)),
                "address",
                self.url,
            )
        return dict(score.get("packages") or {})

    def probe_versions(self) -> dict[str, str]:
        """Return strength and version of the sandbox, and the version of its `python`.

        `NoResponseError` where it runs nothing.
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
        raise NoResponseError(_("it runs nothing: {told}").format(told=told), "address", self.url)

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
        return parse_check_reply(self._post("/check", request, limits))

    def _run(self, code: str, stdin: str, limits: RunLimits) -> dict[str, Any]:
        return self._post("/run_code", {"code": code, "stdin": stdin}, limits)

    def _post(self, path: str, request: Mapping[str, Any], limits: RunLimits) -> dict[str, Any]:
        """Return the sandbox's reply; one that cannot be had is a reply with the status SandboxError."""
        content = {"run_timeout": limits.run_s, "memory_limit_MB": limits.memory_mb, "language": "python", **request}
        try:
            body = json.dumps(content).encode()
            with self._http.stream("POST", self.url + path, body=body, idle_timeout_s=_SILENT_S) as response:
                text = response.read_body()
            reply = parse_json(text)
        except (NoResponseError, ValueError) as error:
            return {"status": SANDBOX_ERROR, "message": str(error)}
        if response.status != 200 or not isinstance(reply, dict):
            message = f"status {response.status}: {text[:200].decode(errors='replace')}"
            return {"status": SANDBOX_ERROR, "message": message}
        return reply


@contextlib.contextmanager
def start_sandbox(python: str, max_cpu_s: float, max_memory_mb: int) -> Iterator[str]:
    """Yield the URL of a sandbox on loopback that runs as long as the block.

    Parameters
    ----------
    python
        Interpreter of the programs; empty: rlbox's own.
    max_cpu_s, max_memory_mb
        What a program may take at most, in seconds of a processor and MB; a request may ask for less.

    Raises
    ------
    NoResponseError
        Programs cannot be isolated here, or it did not start; the text says why.
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
                raise NoResponseError(_read_start_error(strength), "unreached")
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
        if wrong := parse_json(strength).get("wrong"):
            return str(wrong)
    return _("the code sandbox did not start")


class SolutionCheck(NamedTuple):
    """How many reference solutions a suite has, and the verdicts on those that are not accepted, by problem id."""

    solution_count: int
    rejected: dict[str, AnswerVerdict]


def grade_reference_solutions(suite: Suite, problems: Sequence[Problem], sandbox: SandboxClient) -> SolutionCheck:
    """Grade a suite's reference solutions; `NoResponseError` where the sandbox itself fails."""
    solved = [problem for problem in problems if problem.solution_as_model_answer]

    def grade(problem: Problem) -> AnswerVerdict:
        return sandbox.grade(problem, problem.solution_as_model_answer, suite.limits)

    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        verdicts = dict(zip((problem.id for problem in solved), pool.map(grade, solved), strict=True))
    if errors := [verdict.detail for verdict in verdicts.values() if verdict.outcome == "sandbox"]:
        raise NoResponseError(errors[0], "unreached")
    rejected = {name: verdict for name, verdict in verdicts.items() if verdict.outcome != "accepted"}
    return SolutionCheck(len(solved), rejected)
