"""The texts that a line which says that something failed nearly always holds: what a scan looks for first.

Each is rare in a healthy log of hundreds of megabytes, which `tests/unit/diagnose/test_triggers.py` measures; what a
library says without any of them is reached by the anchors of the signature that knows it.
"""

from __future__ import annotations

TRIGGERS = (
    # exceptions, in all places where their names stand
    "rror: ", "rror:\n", "rror:\r", "Error\n", "Error\r", "xception: ", "xception:\n", "xception\n", "Traceback (most", '", line ',
    "Interrupt", "OutOfMemory", "OutOfResources", "Exit: ", "Exit\n", "nhandled", "Exception ", "exception in ",
    "raised:", "Timeout\n", "imeout: ", "Failed: ", "NotFound: ", "FileNotFoundError",
    # levels
    "ERROR", "FATAL", "CRITICAL", "Fatal ", "fatal ", "fatal:", "error:", "error[", "level=error", "level=fatal", "level=panic",
    '"error"', '"ERROR"', '"fatal"', "panic: ", "panicked at", "##[error]",
    # ends
    "Killed", "killed by", "Killing", "Aborted", "Segmentation fault", "Bus error", "core dumped", "Illegal instruction",
    "Hangup", "death signal", "closing signal", "xit code", "xitcode", "xited with", "exit status", "return code = -",
    " died", "crashed", "SIGKILL", "SIGSEGV", "SIGTERM", "SIGABRT", "SIGHUP", "SIGBUS", "SIGINT", "CANCELLED", "terminate called",
    "what():", "oom-kill", "oom_kill", "OOM", "marked dead", "got signal",
    # what failed
    " failed ", "failed:", "failed to ", "Failed ", "FAILED", "Cannot ", "can't ",
    ": cannot access", ": cannot create", ": cannot open", ": cannot remove", ": cannot stat", ": cannot find", ": cannot touch",
    ": cannot move", ": cannot execute", "ould not ", "nable to ",
    "not found", "o such file", "o such option", "ermission denied", "nvalid ", "nknown ", "nrecognized", "efused", "timed out",
    "ncountered", "no space left", "No space left", "ssertion `", "ssertion '", "Assertion ", "Check failed", "NCCL WARN", "Xid (",
    "rror in ", "rror while ", "rror during ", "rror when ", "rror occurred", "ot enough ", "o available ", "out of memory",
    "NVML", "oo many open", "unsupported", "nsupported ", "ot supported", "does not exist", "nsufficient", "out of range",
    "undefined symbol", "undefined reference", "cannot open shared", "Connection reset", "roken pipe", "ot divisible",
)  # fmt: skip

STAMPS = (r"\[?E\d{3,4} \d\d:\d\d:\d\d", r"\d E \d+ \d+\] ", r"\[F\d{3,4} \d\d:")
"""Levels that are one letter beside a clock, as glog, c10d and Ray write them; expressions."""


def is_triggered(text: str) -> bool:
    """Whether a line holds one of the texts, as a scan sees it."""
    line = f"{text}\n"
    return any(trigger in line for trigger in TRIGGERS)
