"""Runs in the sandbox: how does reasoning-gym score an answer to one of its tasks? JSON in, a line of JSON at the end.

Exit status 3: reasoning-gym is missing.
"""

import json
import sys
from typing import Any

try:
    from importlib.metadata import version

    import reasoning_gym
    from reasoning_gym.utils import extract_answer
except ImportError as error:
    sys.stderr.write(f"{error}\n")
    raise SystemExit(3) from error


def score(request: dict[str, Any]) -> float:
    """Return 0 to 1; what stands in the last pair of <answer> counts, or the whole answer without one."""
    entry = json.loads(request["wanted"])
    tasks = reasoning_gym.create_dataset(entry["dataset"], **entry["settings"])
    given = extract_answer(request["answer"])
    return float(tasks.score_answer(request["answer"].strip() if given is None else given, entry["entry"]))


asked = json.load(sys.stdin)
found = {"score": score(asked)} if "answer" in asked else {}
sys.stdout.write(json.dumps(found | {"packages": {"reasoning-gym": version("reasoning-gym")}}) + "\n")
