"""The one place of the evaluation's parameters: baseline, SFT and RL are judged with the same ones (P134, P135, P185).

Every result carries `digest()`; results with two digests are never compared.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

TEMPERATURE = 0.0  # greedy: EVAL@1
TOP_P = 1.0
MAX_NEW_TOKENS = 2048
RUN_TIMEOUT_S = 30
MEMORY_LIMIT_MB = 1024
JUDGED = "apart"  # tests run in a process of their own, and time is the processor's: other verdicts than before
MAX_TESTS = 20  # of a problem with hundreds of generated ones; no seed says

# Raw file, and how many problems there are (P166, P185).
SETS = {
    "codecontests_valid": ("codecontests_valid_raw.jsonl", 117),
    "mbpp_reg": ("mbpp_reg_raw.jsonl", 200),
    "codecontests_valid_big": ("codecontests_valid_big_raw.jsonl", 500),
    "codecontests_test": ("codecontests_test_raw.jsonl", 165),
    "humaneval": ("humaneval_raw.jsonl", 164),
}
TIERS = {1: ("codecontests_valid", "mbpp_reg")}
TIERS[2] = (*TIERS[1], "codecontests_valid_big")
TIERS[3] = (*TIERS[2], "codecontests_test", "humaneval")
MINUTES = {1: 10, 2: 20, 3: 35}  # what a tier takes by the seed; a checkpoint may take twice as long (P183)

ASK_PROGRAM = (
    "Solve the problem with a Python 3 program that reads standard input and writes standard output. "
    "Answer with one code block.\n\n{statement}"
)
ASK_FUNCTION = (
    "Write the Python 3 code that is asked for. Answer with one code block that holds all of it.\n\n{statement}"
)


def parameters() -> dict[str, Any]:
    """Return what decides a score, as JSON types."""
    return {
        "temperature": TEMPERATURE,
        "top_p": TOP_P,
        "max_new_tokens": MAX_NEW_TOKENS,
        "run_timeout": RUN_TIMEOUT_S,
        "memory_limit_mb": MEMORY_LIMIT_MB,
        "max_tests": MAX_TESTS,
        "judged": JUDGED,
        "ask_program": ASK_PROGRAM,
        "ask_function": ASK_FUNCTION,
    }


def digest() -> str:
    """Return twelve hexadecimal digits that two results must share to be compared."""
    return hashlib.sha256(json.dumps(parameters(), sort_keys=True).encode()).hexdigest()[:12]
