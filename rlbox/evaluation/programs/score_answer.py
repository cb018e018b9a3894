"""Run in the sandbox: compare an answer with the expected one by math-verify; JSON in, a line of JSON out.

Without `answer`, only the versions of the packages are reported. Exit status 3: they are missing. The sandbox's own
limits end what takes too long.
"""

import json
import logging
import sys
from importlib.metadata import version
from typing import Any

logging.disable(logging.CRITICAL)
request: dict[str, Any] = json.load(sys.stdin)
try:
    from math_verify import parse, verify
except ImportError as error:
    sys.stderr.write(f"{error}\n")
    raise SystemExit(3) from error

reply: dict[str, Any] = {"packages": {name: version(name) for name in ("math-verify", "sympy")}}
if "answer" in request:
    expected = parse("\\boxed{" + request["expected"] + "}", parsing_timeout=None)
    answer = parse(request["answer"], parsing_timeout=None)  # its last boxed or stated expression
    reply["score"] = float(bool(expected) and bool(answer) and verify(expected, answer, timeout_seconds=None))
sys.stdout.write(json.dumps(reply) + "\n")
