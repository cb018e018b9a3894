"""Run in the sandbox: compare an answer with what is expected. JSON on standard input, a line of JSON at the end.

`scorer` is `math` (math-verify) or `reasoning-gym`; without `answer`, only the versions of its packages are reported.
Exit status 3: they are missing. The sandbox's own limits end what takes too long.
"""

import json
import logging
import sys
from importlib.metadata import version
from typing import Any

logging.disable(logging.CRITICAL)
request: dict[str, Any] = json.load(sys.stdin)
try:
    if request["scorer"] == "math":
        from math_verify import parse, verify
    else:
        import reasoning_gym
        from reasoning_gym.utils import extract_answer
except ImportError as error:
    sys.stderr.write(f"{error}\n")
    raise SystemExit(3) from error


def _score_expression(expected: str, answer: str) -> float:
    """Return 1 or 0: the answer's last boxed or stated expression against the one that is expected."""
    wanted = parse("\\boxed{" + expected + "}", parsing_timeout=None)
    given = parse(answer, parsing_timeout=None)
    return float(bool(wanted) and bool(given) and verify(wanted, given, timeout_seconds=None))


def _score_task(expected: str, answer: str) -> float:
    """Return 0 to 1; what stands in the last pair of <answer> counts, or the whole answer without one."""
    task = json.loads(expected)
    dataset = reasoning_gym.create_dataset(task["dataset"], **task["settings"])
    given = extract_answer(answer)
    return float(dataset.score_answer(answer.strip() if given is None else given, task["entry"]))


is_math = request["scorer"] == "math"
packages = ("math-verify", "sympy") if is_math else ("reasoning-gym",)
reply: dict[str, Any] = {"packages": {name: version(name) for name in packages}}
if "answer" in request:
    reply["score"] = (_score_expression if is_math else _score_task)(request["expected"], request["answer"])
sys.stdout.write(json.dumps(reply) + "\n")
