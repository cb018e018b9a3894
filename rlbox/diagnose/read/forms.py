"""How programs say that something failed, without a traceback: shells, linkers, daemons, argument parsers, kernels.

A form has a weight: 3, a program's last word; 2, it states an error; 1, it may.
"""

from __future__ import annotations

import functools
import re

from rlbox.diagnose.read.line import FAILED, Row
from rlbox.diagnose.read.trace import NAME

LAST_WORD, STATED, PERHAPS = 3, 2, 1

_SIGNALS = (
    r"(?:Killed|Segmentation fault|Aborted|Bus error|Illegal instruction|Floating point exception"
    r"|Trace/breakpoint trap|Hangup)"
)
_CANNOT = (
    r"(?:[cC]annot|[cC]an't|[cC]an not|[cC]ould not|[cC]ouldn't|[uU]nable to|[fF]ailed to|[iI]nvalid|[uU]nrecognized"
    r"|[uU]nknown|[nN]o such|[pP]ermission denied|[nN]ot found)"
)
_PROGRAMS = (
    # shells
    rf"^\S+: line \d+: +\d+ {_SIGNALS}",
    rf"^{_SIGNALS}(?: \(core dumped\))?\s*$",
    rf"^\[\d+\][+-]? +(?:\d+ )?{_SIGNALS}",
    r": (?:command not found|event not found|unbound variable|bad substitution|bad interpreter: )",
    r"^(?:\S*/)?-?(?:ba|z|da|k|c)?sh: (?:line )?\d*:? ?\S.*",
    r"^\S+\.(?:sh|bash|zsh|slurm|sbatch): (?:line )?\d+: ",
    r": not found\s*$",
    # programs that name themselves
    rf"^[\w./+-]{{2,80}}(?:\[\d+\])?: (?:[\w./ -]{{1,60}}: )?(?:fatal error|internal error|error|Error|ERROR|fatal|FATAL|panic)\s*:",
    rf"^[a-z][\w./+-]{{1,40}}: (?:[\w./ '\"-]{{1,60}}: )?{_CANNOT}\b",
    rf"^(?:/[\w./-]+/)?(?:python[\d.]*|pip[\d.]*|uv|conda|ld|gcc|g\+\+|cc1plus|collect2|make(?:\[\d+\])?): \S",
    r"^(?:error|fatal|ERROR|FATAL|Error|Fatal|FAILED|failed)(?:\[\w+\])?: \S",
    r"^(?:ERROR|FATAL|CRITICAL) \S",
    r"^E: \S|^Err:\d+ |^npm ERR!|^curl: \(\d+\) |^ *× [A-Za-z]{4}|^Error response from daemon|^Error from server",
    # compilers and linkers
    r"\.(?:cu|cuh|cpp|cc|c|h|hpp)(?::\d+){1,2}: (?:fatal )?error: |\.(?:cu|cuh|cpp|h|hpp)\(\d+\): (?:fatal )?error",
    r"\b(?:nvcc|ptxas|cicc|fatbinary|nvlink) (?:fatal|error)\s*:|cannot find -l\w|undefined reference to `",
    r"^CMake Error|^FAILED: |^ninja: (?:error|build stopped|fatal)|^make(?:\[\d+\])?: \*\*\* |^error: could not compile",
    r"LLVM ERROR: |^loc\(.{0,200}\): error: ",
    # the loader
    r"cannot open shared object file|symbol lookup error: |error while loading shared libraries: "
    r"|undefined symbol: |version `?GLIBC(?:XX)?_[\d.]+'? not found",
    # interpreters and run times
    r"^Fatal Python error: |^thread '[^']*' (?:\(\d+\) )?panicked at|^panic: |^fatal error: |^terminate called |^\s*what\(\): ",
    r"^(?:(?:free|malloc|realloc|munmap_chunk|malloc_consolidate)\(\)|double free or|corrupted (?:size|double)).*"
    r"|^\*\*\* (?:stack smashing|Error in|SIG[A-Z]+ received|Aborted at)|Process received signal \*\*\*|Segfault encountered",
    r"Assertion [`'].{1,400}' failed|^\S+:\d+: .{0,200}Assertion .{1,300} failed|Check failed: ",
    r"^(?:OMP|libgomp|OpenBLAS|Intel MKL)\b.{0,60}(?:[eE]rror|ERROR|failed)",
    # the kernel
    r"Out of memory: Kill|oom-kill(?:er)?\b|oom_kill|Memory cgroup out of memory|NVRM: Xid|fallen off the bus"
    r"|\bsegfault at [0-9a-f]|blocked for more than \d+ seconds|I/O error, dev ",
    # drivers
    r"Failed to initialize NVML|NVIDIA-SMI has failed|No devices were found|Unable to determine the device handle"
    r"|nvidia-container-cli|could not select device driver|OCI runtime (?:create|exec) failed",
    # schedulers and launchers
    r"^(?:slurmstepd|srun|sbatch|salloc|slurmd): (?:error|fatal): |DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAILURE)|OOMKilled"
    r"|CrashLoopBackOff|ImagePullBackOff|ErrImagePull|FailedScheduling|^mpirun noticed|MPI_ABORT|not enough slots",
    # CUDA, NCCL and Gloo, wherever they say it
    r"\b(?:CUDA|cuda|HIP|NCCL|nccl|cuBLAS|cuDNN|cudnn) ?(?:runtime |driver )?[eE]rror\b|^ncclSystemError|^ncclInternalError"
    r"|No space left on device|Disk quota exceeded|Cannot allocate memory|Too many open files",
)
_ERRORS = (
    rf"(?:^|[\s:=(\[|>]){NAME}: \S",
    rf"(?:^|[\s:=(\[|>])(?:[a-zA-Z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\(['\"]",
    rf"^\s*{NAME}:?\s*$",
    r"\b(?:exception|Exception|EXCEPTION) (?:in|occurred|raised|while|thrown)\b|\bhit an exception\b|encountered an issue",
    r"\b(?:failed|Failed|FAILED) (?:with|to|due)\b|\b(?:error|Error) (?:while|during|in|occurred|when|loading|running)\b",
    r"\b(?:crashed|died|aborting|Aborting|panicked|unrecoverable|non-zero exit|exit code:? [1-9-]|exitcode:? ?[1-9-])",
    r"^(?:Cannot|Can't|Could not|Couldn't|Unable to|Failed to|Invalid|Unsupported|Not enough|Out of|No available|Missing) ",
    r'"error"\s*:\s*[{"]|"object":\s*"error"|\b50[0234] (?:Bad Gateway|Service|Internal|Gateway)',
)


def weight(row: Row) -> int:
    """Return how surely a line says that something failed: 0 where it does not."""
    body = row.body.strip()
    if not body:
        return 0
    if _programs().search(body):
        return LAST_WORD
    if row.level >= FAILED:
        return STATED
    found = _errors().search(body)
    return 0 if found is None else STATED if found.lastindex is None and _is_named(body) else PERHAPS


def _is_named(body: str) -> bool:
    return bool(_named().search(body))


@functools.cache
def _programs() -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{text})" for text in _PROGRAMS))


@functools.cache
def _errors() -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{text})" for text in _ERRORS))


@functools.cache
def _named() -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{text})" for text in _ERRORS[:3]))
