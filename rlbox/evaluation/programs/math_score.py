"""Runs in the sandbox: is an answer the expression that is wanted? JSON on standard input, a line of JSON at the end.

Exit status 3: math-verify is missing. The sandbox's own limits end what takes too long.
"""

import json
import logging
import sys
from typing import Any

logging.disable(logging.CRITICAL)
try:
    from importlib.metadata import version

    from math_verify import parse, verify
except ImportError as error:
    sys.stderr.write(f"{error}\n")
    raise SystemExit(3) from error


def score(request: dict[str, Any]) -> float:
    """Return 1 or 0: the answer's last boxed or stated expression against the one that is wanted."""
    wanted = parse("\\boxed{" + request["wanted"] + "}", parsing_timeout=None)
    given = parse(request["answer"], parsing_timeout=None)
    return float(bool(wanted) and bool(given) and verify(wanted, given, timeout_seconds=None))


asked = json.load(sys.stdin)
found = {"score": score(asked)} if "answer" in asked else {}
sys.stdout.write(json.dumps(found | {"packages": {name: version(name) for name in ("math-verify", "sympy")}}) + "\n")
