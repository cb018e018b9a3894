"""Run an answer of the model in rlbox's sandbox, and say how it did; nothing of it runs anywhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sft import eval_config
from sft.problems import Problem
from sft.web import AskError, Server

WAIT_S = 3600.0
"""For an answer: a request waits for its turn, and a program for a processor; the sandbox's own limits end it."""
_BLOCK = re.compile(r"```(?:python3?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How one answer did: `passed` of `runs` runs were right, `clean` ended by themselves with exit status 0.

    `outcome` is accepted, wrong, failed (an exception), timeout, no-code, or sandbox (the sandbox itself failed, which
    says nothing about the answer).
    """

    outcome: str
    runs: int
    passed: int
    clean: int
    detail: str = ""

    @property
    def accepted(self) -> bool:
        """Every run was right."""
        return self.outcome == "accepted"

    @property
    def executed(self) -> bool:
        """Every run that was made ended by itself with exit status 0."""
        return self.runs > 0 and self.clean == self.runs


class Sandbox:
    """The code sandbox at `url`. It is asked directly, proxies of the environment are not used."""

    def __init__(self, url: str) -> None:
        self.server = Server(url, wait_s=WAIT_S)

    def run(self, code: str, stdin: str = "") -> dict[str, Any]:
        """Return the answer to POST /run_code; what cannot be asked is an answer with status SandboxError."""
        return self._ask("/run_code", {"code": code, "stdin": stdin})

    def check_program(self, code: str, problem: Problem) -> dict[str, Any]:
        """Return the answer to POST /check: tests run apart from the program, which cannot answer for them."""
        tests = {"tests": problem.check, "before": problem.before, "names": problem.names}
        return self._ask("/check", {"code": code, **tests})

    def _ask(self, path: str, what: dict[str, Any]) -> dict[str, Any]:
        limits = {"run_timeout": eval_config.RUN_TIMEOUT_S, "memory_limit_MB": eval_config.MEMORY_LIMIT_MB}
        try:
            answer: dict[str, Any] = self.server.read(
                path, self.server.ask(path, {"language": "python", **what, **limits})
            )
        except AskError as error:
            return {"status": "SandboxError", "message": str(error)}
        return answer

    def check(self) -> str:
        """Return what is wrong with the sandbox, or nothing: it must run a program and say what it printed (P162)."""
        answer = self.run("print(1 + 1)")
        if answer["status"] == "Success" and (answer.get("run_result") or {}).get("stdout") == "2\n":
            return ""
        told = answer.get("message") or (answer.get("run_result") or {}).get("stderr") or str(answer)
        return f"the code sandbox at {self.server.url} runs nothing: {str(told).strip()[-300:]}"


def code_of(answer: str) -> str:
    """Return the longest code block of an answer; all of it when it has none but looks like code; else nothing."""
    if blocks := _BLOCK.findall(answer):
        return str(max(blocks, key=len)).strip("\n")
    return answer if re.search(r"^(def|import|from|print|for|while|class)\b", answer, re.MULTILINE) else ""


def judge(problem: Problem, answer: str, sandbox: Sandbox) -> Verdict:
    """Return how `answer` does on `problem`; the first run that is not right ends it."""
    code = code_of(answer)
    if not code:
        return Verdict(outcome="no-code", runs=len(problem.runs) or 1, passed=0, clean=0)
    if not problem.runs:
        return _checked(sandbox.check_program("\n".join([_before(problem, code), code]), problem))
    passed = 0
    for stdin, expected in problem.runs:
        outcome, detail = _outcome(sandbox.run(code, stdin), expected)
        if outcome != "accepted":
            clean = passed + (outcome == "wrong")
            return Verdict(outcome=outcome, runs=passed + 1, passed=passed, clean=clean, detail=detail)
        passed += 1
    return Verdict(outcome="accepted", runs=passed, passed=passed, clean=passed)


def _checked(reply: dict[str, Any]) -> Verdict:
    """Return the checker's word; a program whose answers were wrong has ended cleanly all the same."""
    outcome = "sandbox" if reply["status"] == "SandboxError" else str(reply.get("verdict", "sandbox"))
    detail = str(reply.get("detail") or reply.get("message") or "")[-300:]
    accepted = outcome == "accepted"
    return Verdict(outcome=outcome, runs=1, passed=accepted, clean=accepted or outcome == "wrong", detail=detail)


def _before(problem: Problem, code: str) -> str:
    """A HumanEval head is left out when the answer defines the function itself; its imports are kept."""
    heads = re.findall(r"^def (\w+)", problem.before, re.MULTILINE)
    if heads and re.search(rf"^def {heads[-1]}\b", code, re.MULTILINE):
        return "\n".join(re.findall(r"^(?:import|from) .*", problem.before, re.MULTILINE))
    return problem.before


def _outcome(reply: dict[str, Any], expected: str) -> tuple[str, str]:
    result = reply.get("run_result") or {}
    if reply["status"] == "SandboxError" or not result:
        return "sandbox", str(reply.get("message", ""))[-300:]
    if result.get("status") == "TimeLimitExceeded":
        return "timeout", f"more than {eval_config.RUN_TIMEOUT_S} s of processor time, or asleep"
    if result.get("return_code") != 0:
        return "failed", (result.get("stderr") or "").strip()[-300:]
    if not same_output(result.get("stdout") or "", expected):
        return "wrong", f"printed {(result.get('stdout') or '')[:100]!r}, not {expected[:100]!r}"
    return "accepted", ""


def same_output(printed: str, expected: str) -> bool:
    """Whether two outputs hold the same words in the same lines, blank ends and empty lines aside."""
    return _lines(printed) == _lines(expected)


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]
