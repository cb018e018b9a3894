"""Names of what a run directory holds, where more than one module speaks of it."""

from __future__ import annotations

ProblemOrEmpty = str
"""What is wrong, in a few words; empty: nothing."""

METRICS_FILE = "metrics.jsonl"
STATUS_PAGE = "STATUS.md"
EVIDENCE_FOLDER = "evidence"
"""Below the directory of a stage; what follows lies in it."""

REPORT_PAGE = "REPORT.md"
FATAL_FILE = "first_fatal.txt"
HANG_FILE, HANG_PAGE = "hang.json", "HANG.md"


STAGE_LOG = "stage"


ATTEMPT_PREFIX = "attempt-"

SOURCE_PARAM = "source"
"""The parameter of a job with a table `[source]`: a user's own work tree of its framework."""
