"""What a fatal line of a log looks like, and its look-alikes in healthy logs."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, Literal

from rlbox.logs.lines import block_of
from rlbox.logs.patterns import find_hits
from rlbox.spec.pattern import linear

Grade = Literal["fatal", "noticed", "wrapper"]
"""How much a line tells: what failed; that somebody else is gone or that the end is near; that something failed."""

_RAY = r"(?:[ \t]*\([^()\n]*\bpid=[0-9][^()\n]*\)[ \t]?)?"
_START = rf"^{_RAY}"
_END = r"[ \t]*(?:\[repeated [^\n]*)?$"
FATAL_LINE = "|".join(
    (
        r"Traceback \(most recent call last\)",
        # an exception that a line names: `ValueError: ...`, `torch.OutOfMemoryError: ...`, also behind a log's prefix
        rf"(?:{_START}|[\]|>:)][ \t]{{0,8}}|{_START}[ \t]{{4,8}})"
        r"(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Failed|Exit)|KeyboardInterrupt|OutOfResources"
        rf"|OfflineModeIsEnabled|Empty|Full)(?::[ \t]|:?{_END}|\()",
        # a level
        rf"{_START}[^\w\n]{{0,4}}(?:ERROR|CRITICAL|FATAL|Error|error|fatal)\b[ \t]*:",
        rf"{_START}(?:ERROR|CRITICAL|FATAL)[ \t]\S",
        r"(?:^|[ \t|])(?:\||-)[ \t](?:ERROR|CRITICAL|FATAL)[ \t](?:\||-)",
        r"\[(?:ERROR|CRITICAL|FATAL|error)\b",
        rf"\[E[0-9]{{3,4}} [0-9][0-9]:|{_START}E[0-9]{{4}} [0-9][0-9]:| E [0-9]+ [0-9]+\] ",
        # what shells, linkers, kernels and libraries say
        rf"{_START}[ \t]*(?:\S+: )?(?:line [0-9]+: )?[ \t]*(?:[0-9]+ )?"
        r"(?:Killed|Segmentation fault|Aborted|Bus error|Illegal instruction)\b",
        r"(?:^|[ \t])Fatal Python error: |terminate called after throwing|core dumped\)",
        rf"{_START}[\w./-]+: error: |: fatal error: |cannot find -l\w|command not found",
        rf"No such file or directory{_END}",
        r"is killed by signal|death signal|Failed to initialize NVML|initialization error: |NCCL WARN .*[Ee]rror",
        rf"No space left on device|(?:CUDA|cuda) [Ee]rror: |[Cc]ould not load model|error: |{_START}error\b",
        r"Cannot access gated repo|watchdog thread terminated|caught collective operation timeout",
        r"Failed to register worker|compiled using NumPy 1\.x cannot be run|ThreadPoolBuildError",
        r"oom-kill|Out of memory: Killed process|NVRM: Xid",
        r"The last [0-9]+ lines of |Started a local Ray instance|Ray runtime started",
    )
)
"""What may be a fatal line, or begins a traceback; for RE2 with `(?m)`, over the lines of a block or over one."""

_WRAPPER = (
    r"ChildFailedError|RayTaskError|ActorDiedError|RayActorError|WorkerCrashedError|EngineDeadError"
    r"|Engine core initialization failed|Engine process failed to start|EngineCore (?:failed to start|encountered)"
    r"|[Aa]ctor died|worker died|[Ww]orker exit|CalledProcessError.*(?:torchrun|accelerate)|Sending process .* signal"
    r"|failed \(exitcode|ray::\w+.*\(pid=|died, exit code|\braised:$"
    r"|Error executing job with overrides|Failures:|Root Cause|subprocess-exited-with-error"
    r"|Set the environment variable HYDRA_FULL_ERROR|metadata-generation-failed"
)
_NOTICED = re.compile(
    r"[Cc]onnection (?:reset|closed|was forcibly closed) by (?:remote )?peer|ConnectionResetError|remote process exited"
    r"|[Bb]roken ?[Pp]ipe|DistNetworkError|recvValue failed|failed to recv|[Ss]ocket closed|ncclRemoteError"
    r"|collective operation timeout|NCCL operations have failed or timed out"
    r"|socket has failed|unexpected EOF|EOFError|heartbeat|Stop_waiting response"
    r"|terminate called|Aborted\b|core dumped|death signal|killed by signal|SIGTERM|SIGABRT"
)
_BENIGN = re.compile(
    r"Exception in ASGI application|VLLMValidationError|HTTPException|RequestValidationError|ClientDisconnect"
    r"|Exception ignored in|StopIteration|ImportError while|[Ff]ailed to (?:load|import) (?:function|plugin)"
    r"|\b(?:retry|retrying|falling back|fallback|ignor(?:e|ed|ing)|skipping|optional)\b|errors?[:=]\s*(?:0|None)\b"
    r"|file_system_monitor|error rate|\berrors='"
)
_TAIL_OF = re.compile(r"^\s*The last (\d{1,3}) lines of \S+ \(it contains the error message from the ")
_LIVES_ON = re.compile(r"Started a local Ray instance|Ray runtime started")
_QUIET_LEVEL = re.compile(r"(?:^|[\s\[|(])(?:WARNING|WARN|INFO|DEBUG|NOTICE)\b|\bUserWarning\b|Warning:")
_QUIET_BYTES = 80
_SOURCE = re.compile(r"^\s*raise\s")
_LANE = re.compile(
    r"^\s*(?:\((?=[^()]*\bpid=\d)[^()]*\)"  # Ray and vLLM: (WorkerDict pid=12, ip=10.0.0.2)
    r"|\[(?:rank|default) ?\d+\]"  # torch, torchrun --tee
    r"|\[\d+,\d+\]<std(?:err|out)>"  # mpirun --tag-output
    r"|\d{1,4}:\s"  # srun --label
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?((?: (?:DP|PP|TP|EP)\d+)+)\])"  # SGLang
)
_CLOCK = re.compile(
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?|\b\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"|\b[EWIF]\d{4} \d\d:\d\d:\d\d(?:\.\d+)?"
)
_CLOCK_WITHIN = 120


class Scan:
    """The lines of one block that may be fatal, found by one pass of RE2 over all of its text.

    A block whose `hits` somebody has found already, for `FATAL_LINE` and other patterns at once, is not searched again.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._block = block_of(texts)
        hits = self._block.hits
        self._hits = iter(find_hits((FATAL_LINE,), self._block) if hits is None else hits)
        self._line = 0

    def next(self) -> int:
        """Return the index of the next line that may be fatal or begins a traceback; -1 when there is none."""
        for index in self._hits:
            if index >= self._line and may_be_fatal(self._block[index]):
                return index
        return -1

    def skip(self, line: int) -> None:
        """Go on at the line with that index."""
        self._line = line


def may_be_fatal(text: str) -> bool:
    """Whether a line may be fatal or begins a traceback."""
    return _pattern().search(text.encode("utf-8", "replace")) is not None


@functools.cache
def _pattern() -> Any:
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes as they are: half the states, and all patterns are ASCII
    return re2.compile(f"(?m)(?:{FATAL_LINE})".encode(), options)


def last_shown(texts: Sequence[str]) -> str:
    """Return the last line that is not blank, empty when all are; a block is not split into lines for it."""
    data = block_of(texts).joined
    end = len(data.rstrip(b"\n")) if data.endswith(b"\n") else len(data)
    while end > 0:
        start = data.rfind(b"\n", 0, end) + 1
        text = data[start:end].decode("utf-8", "replace")
        if text.strip():
            return text
        end = start - 1
    return ""


def is_quiet(text: str) -> bool:
    """Whether a line that names an error says itself that it is none: a warning, a retry, an optional part."""
    if _BENIGN.search(text) or _SOURCE.match(text):
        return True
    return bool(_QUIET_LEVEL.search(text[:_QUIET_BYTES].replace("NCCL WARN", "")))


def is_benign(text: str) -> bool:
    """Whether a line is among those that servers and libraries print of failures that they live with."""
    return bool(_BENIGN.search(text))


def has_quiet_level(text: str) -> bool:
    """Whether a prefix carries the level of a warning or less."""
    return bool(_QUIET_LEVEL.search(text))


def quoted_tail(text: str) -> int:
    """Return how many lines of a helper's log a line announces, as Ray quotes its dashboard's; 0: it announces none.

    Source: Ray 2.60 python/ray/_private/services.py, `start_api_server`, which goes on without a dashboard.
    """
    found = _TAIL_OF.match(text)
    return int(found.group(1)) if found else 0


def lives_on(text: str) -> bool:
    """Whether a line says that what quoted such a tail has started all the same."""
    return bool(_LIVES_ON.search(text))


def grade(text: str) -> Grade:
    """Return how much a fatal line tells."""
    if linear(_WRAPPER).search(text):
        return "wrapper"
    return "noticed" if _NOTICED.search(text) else "fatal"


def lane(text: str) -> str:
    """Return the prefix by which a line names the process or rank that wrote it; empty when it names none."""
    found = _LANE.match(text)
    return (found.group(1) or found.group(0)).strip() if found else ""


def said_at(text: str) -> str:
    """Return the time that a line itself states, as it is written; empty when it states none."""
    found = _CLOCK.search(text[:_CLOCK_WITHIN])
    return found.group(0) if found else ""


def is_earlier(one: str, other: str) -> bool:
    """Whether of two times as `said_at` gives them the first is before the other; False when they do not compare."""
    return bool(one) and re.sub(r"\d", "0", one) == re.sub(r"\d", "0", other) and one < other
