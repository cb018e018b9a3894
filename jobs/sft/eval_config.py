"""Which suites a tier of the evaluation has, and how long it takes.

What decides a score (decoding, limits, prompts) is in rlbox's suites of these names, and in the lock of
each result.
"""

from __future__ import annotations

TIERS = {1: ("codecontests_valid", "mbpp_reg")}
TIERS[2] = (*TIERS[1], "codecontests_valid_big")
TIERS[3] = (*TIERS[2], "codecontests_test", "humaneval")
MINUTES = {1: 10, 2: 20, 3: 35}  # what a tier takes on four RTX 5090, as reported; a checkpoint may take twice as long
GUARD = "humaneval"  # what must not drop
BASE = "base"  # what the model before training is called, where it is judged as the baseline


def raw_file(name: str) -> str:
    """Return the file of a suite's problems below the folder of raw sets."""
    return f"{name}_raw.jsonl"
