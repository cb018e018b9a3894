"""Run and judge answers in rlbox's sandbox: code that a model wrote runs nowhere else."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlbox.evaluation.problems import Problem
from rlbox.evaluation.suites import JudgingLimits, Suite
from rlbox.evaluation.verdict import (
    AnswerVerdict,
    extract_code,
    judge_run,
    parse_check_reply,
    parse_score_reply,
    read_score_line,
)
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.command import PIPE, ProcessHandle, start_command, wait_for_exit
from rlbox.system.http import HttpClient, NoResponseError
from rlbox.values import Command

_PROGRAMS = Path(__file__).resolve().parent / "programs"
SCORERS = {"math": _PROGRAMS / "math_score.py", "reasoning-gym": _PROGRAMS / "gym_score.py"}
"""What compares answers, by the name that a suite calls it."""
_PROBE = "import platform\nprint(1 + 1)\nprint(platform.python_version())"
_WAIT_S = 3600.0
"""For an answer: a request waits for its turn, and a program for a processor; the sandbox's own limits end it."""


class SandboxClient:
    """The code sandbox at `url`; any number of threads may ask."""

    def __init__(self, url: str, http: HttpClient) -> None:
        self.url, self._http = url.rstrip("/"), http

    def judge(self, problem: Problem, answer: str, limits: JudgingLimits) -> AnswerVerdict:
        """Return how `answer` does on `problem`; the first run that is not right ends it."""
        if problem.judge:
            return self._score(problem, answer, limits)
        code = extract_code(answer)
        if not code:
            return AnswerVerdict(outcome="no-code", runs=len(problem.runs) or 1)
        if not problem.runs:
            return self._check(problem, code, limits)
        passed = 0
        for stdin, expected in problem.runs:
            outcome, detail = judge_run(self._run(code, stdin, limits), expected, limits.run_s)
            if outcome != "accepted":
                clean = passed + (outcome == "wrong")
                return AnswerVerdict(outcome=outcome, runs=passed + 1, passed=passed, clean=clean, detail=detail)
            passed += 1
        return AnswerVerdict(outcome="accepted", runs=passed, passed=passed, clean=passed)

    def packages(self, judge: str) -> dict[str, str]:
        """Return the versions of what compares answers; `NoResponseError` where the sandbox's interpreter lacks it."""
        score, told = read_score_line(self._ask_score(judge, {}, JudgingLimits()))
        if score is None:
            raise NoResponseError(
                _("{judge} does not work there: {told}").format(judge=judge, told=told), "address", self.url
            )
        return dict(score.get("packages") or {})

    def probe(self) -> dict[str, Any]:
        """Return what the sandbox is, and the interpreter of its programs.

        `NoResponseError` where it runs none (P162).
        """
        reply = self._run(_PROBE, "", JudgingLimits(run_s=10))
        said = str((reply.get("run_result") or {}).get("stdout") or "").splitlines()
        if reply.get("status") == "Success" and said[:1] == ["2"]:
            own = reply.get("rlbox") or {}
            python = said[1] if len(said) > 1 else ""
            return {"strength": str(own.get("strength", "")), "version": own.get("version", ""), "python": python}
        told = reply.get("message") or (reply.get("run_result") or {}).get("stderr") or str(reply)
        raise NoResponseError(_("it runs nothing: {told}").format(told=str(told).strip()[-300:]), "address", self.url)

    def _score(self, problem: Problem, answer: str, limits: JudgingLimits) -> AnswerVerdict:
        """Compare an answer that is no code, in a process with limits: what it writes may take for ever to read."""
        return parse_score_reply(self._ask_score(problem.judge, {"answer": answer, "wanted": problem.wanted}, limits))

    def _ask_score(self, judge: str, asked: dict[str, str], limits: JudgingLimits) -> dict[str, Any]:
        return self._run(SCORERS[judge].read_text("utf-8"), json.dumps(asked), limits)

    def _check(self, problem: Problem, code: str, limits: JudgingLimits) -> AnswerVerdict:
        """Check functions: the program is the whole prompt with the answer behind it, as in the official harness."""
        asked = {
            "code": f"{problem.before}\n{code}" if problem.before else code,
            "tests": problem.check,
            "before": problem.before,
            "names": list(problem.names),
        }
        return parse_check_reply(self._ask("/check", asked, limits))

    def _run(self, code: str, stdin: str, limits: JudgingLimits) -> dict[str, Any]:
        return self._ask("/run_code", {"code": code, "stdin": stdin}, limits)

    def _ask(self, path: str, what: dict[str, Any], limits: JudgingLimits) -> dict[str, Any]:
        """Return the sandbox's answer; one that cannot be had is an answer with status SandboxError."""
        most = {"run_timeout": limits.run_s, "memory_limit_MB": limits.memory_mb}
        body = json.dumps({"language": "python", **what, **most}).encode()
        try:
            with self._http.stream("POST", self.url + path, body=body, idle_timeout_s=_WAIT_S) as answer:
                text = answer.read_body()
            found = parse_json(text)
        except (NoResponseError, ValueError) as error:
            return {"status": "SandboxError", "message": str(error)}
        if answer.status != 200 or not isinstance(found, dict):
            return {
                "status": "SandboxError",
                "message": f"status {answer.status}: {text[:200].decode(errors='replace')}",
            }
        return found


_PATIENCE_S = 30.0


@contextlib.contextmanager
def start_sandbox(python: str, cpu_s: float, memory_mb: int) -> Iterator[str]:
    """Yield the address of a sandbox that is started on loopback, and ended behind the block.

    Parameters
    ----------
    python
        Interpreter of the programs; empty: rlbox's own.
    cpu_s, memory_mb
        What a program may take at most, in seconds of a processor and MB; a request may ask for less.

    Raises
    ------
    NoResponseError
        Programs have no wall here, or it did not start; the text says why.
    """
    own = [sys.executable, "-m", "rlbox.sandbox", "serve", "--port", "0", "--python", python or sys.executable]
    with tempfile.TemporaryDirectory(prefix="rlbox-sandbox-") as scratch:
        limits = ["--cpu-s", f"{cpu_s:g}", "--memory-mb", str(memory_mb), "--scratch", scratch]
        process = start_command(Command(argv=(*own, *limits)), stdout=PIPE, die_with_parent=True)
        try:
            strength, listens = _lines(process)
            port = listens.rpartition(b":")[2].strip()
            if not port.isdigit():
                raise NoResponseError(_why(strength), "unreached")
            yield f"http://127.0.0.1:{int(port)}"
        finally:
            process.terminate()
            if wait_for_exit(process, _PATIENCE_S) is None:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()


def _lines(process: ProcessHandle) -> tuple[bytes, bytes]:
    """Return what the sandbox says first: its strength, and where it listens; empty where it has ended."""
    said = process.stdout
    return (said.readline(), said.readline()) if said else (b"", b"")


def _why(strength: bytes) -> str:
    try:
        wrong = str(parse_json(strength).get("wrong") or "")
    except (ValueError, AttributeError):
        wrong = ""
    return wrong or _("the code sandbox did not start")


def judge_solutions(
    suite: Suite, problems: Sequence[Problem], sandbox: SandboxClient
) -> tuple[int, dict[str, AnswerVerdict]]:
    """Return how many reference solutions there are, and the verdicts on those that are not accepted here.

    `NoResponseError` where the sandbox itself fails.
    """
    own = [problem for problem in problems if problem.own_answer]

    def one(problem: Problem) -> AnswerVerdict:
        return sandbox.judge(problem, problem.own_answer, suite.limits)

    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        verdicts = dict(zip((problem.id for problem in own), pool.map(one, own), strict=True))
    if broken := [one.detail for one in verdicts.values() if one.outcome == "sandbox"]:
        raise NoResponseError(broken[0], "unreached")
    return len(own), {name: verdict for name, verdict in verdicts.items() if not verdict.accepted}
