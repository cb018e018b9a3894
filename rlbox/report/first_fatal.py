"""Find the first fatal line of a log: the one that an expert would point at, not the wrappers that follow it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from rlbox.plan.lines import Line

CONTEXT_LINES = 100
"""Lines kept before and after the fatal one (DESIGN §6)."""

_TRACEBACK_LIMIT = 2000
_NAME = r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*"
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_QUIET_LEVEL = re.compile(r"(?:^|[\s\[|(])(?:WARNING|WARN|INFO|DEBUG|NOTICE)\b|\bUserWarning\b|Warning:")
_FRAME = re.compile(r'  File "')
_RAISED = re.compile(rf"^{_NAME}(?:\(.*?\))?(?::\s.*|:)?$")
_LEVEL_WORD = re.compile(r"^(?:INFO|WARNING|WARN|DEBUG|NOTICE|NOTE|Note)\b")
_EXCEPTION = re.compile(
    r"(?:^|[\]|>:)]\s{0,8}|^\s{4,8})"
    r"(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Failed|Exit)|KeyboardInterrupt|OutOfResources"
    r"|OfflineModeIsEnabled|Empty|Full)(?::\s|:?$|\()"
)
_LEVEL = re.compile(
    r"^\W{0,4}(?:ERROR|CRITICAL|FATAL|Error|error|fatal)\b\s*:"
    r"|^(?:ERROR|CRITICAL|FATAL)\s\S"
    r"|(?:^|[\s|])(?:\||-)\s(?:ERROR|CRITICAL|FATAL)\s(?:\||-)"
    r"|\[(?:ERROR|CRITICAL|FATAL|error)\b"
    r"|\[E\d{3,4} \d\d:|^E\d{4} \d\d:| E \d+ \d+\] "
)
_PROGRAM = re.compile(
    r"^\s*(?:\S+: )?(?:line \d+: )?\s*(?:\d+ )?(?:Killed|Segmentation fault|Aborted|Bus error|Illegal instruction)\b"
    r"|(?:^|\s)Fatal Python error: |terminate called after throwing|core dumped\)"
    r"|^[\w./-]+: error: |: fatal error: |cannot find -l\w|command not found|No such file or directory$"
    r"|is killed by signal|death signal|Failed to initialize NVML|initialization error: |NCCL WARN .*[Ee]rror"
    r"|No space left on device|(?:CUDA|cuda) [Ee]rror: |[Cc]ould not load model|error: |^error\b"
    r"|Cannot access gated repo|watchdog thread terminated|caught collective operation timeout"
    r"|Failed to register worker|compiled using NumPy 1\.x cannot be run|ThreadPoolBuildError"
)
_WRAPPER = re.compile(
    r"ChildFailedError|RayTaskError|ActorDiedError|RayActorError|WorkerCrashedError|EngineDeadError"
    r"|Engine core initialization failed|Engine process failed to start|EngineCore (?:failed to start|encountered)"
    r"|[Aa]ctor died|worker died|[Ww]orker exit|CalledProcessError.*(?:torchrun|accelerate)|Sending process .* signal"
    r"|failed \(exitcode|ray::\w+.*\(pid=|died, exit code|\braised:$"
    r"|Error executing job with overrides|Failures:|Root Cause|subprocess-exited-with-error"
    r"|Set the environment variable HYDRA_FULL_ERROR|metadata-generation-failed"
)
_BENIGN = re.compile(
    r"Exception in ASGI application|VLLMValidationError|HTTPException|RequestValidationError|ClientDisconnect"
    r"|Exception ignored in|StopIteration|ImportError while|[Ff]ailed to (?:load|import) (?:function|plugin)"
    r"|\b(?:retry|retrying|falling back|fallback|ignor(?:e|ed|ing)|skipping|optional)\b|errors?[:=]\s*(?:0|None)\b"
    r"|file_system_monitor|error rate|\berrors='"
)


@dataclass(frozen=True, kw_only=True)
class FatalLine:
    """The first fatal line; `before` and `after` hold up to `CONTEXT_LINES` lines as they are in the log."""

    number: int
    text: str
    before: tuple[str, ...]
    after: tuple[str, ...]


def find_first_fatal(lines: Iterable[Line]) -> FatalLine | None:
    """Return the first fatal line, or None when nothing in the log looks fatal.

    A Python traceback is named by its exception line. Wrappers, which report that something else failed, are taken
    only when there is nothing before or after them. One pass; memory is that of the context.
    """
    finder = _Finder()
    for line in lines:
        finder.take(line)
    return finder.result()


class _Candidate:
    def __init__(self, line: Line, before: Iterable[str]) -> None:
        self.line = line
        self.before = tuple(before)
        self.after: list[str] = []

    def take(self, text: str) -> None:
        if len(self.after) < CONTEXT_LINES:
            self.after.append(text)

    def fatal_line(self) -> FatalLine:
        return FatalLine(
            number=self.line.number, text=self.line.text.strip(), before=self.before, after=tuple(self.after)
        )


class _Finder:
    def __init__(self) -> None:
        self._recent: deque[str] = deque(maxlen=CONTEXT_LINES)
        self._found: _Candidate | None = None
        self._wrapper: _Candidate | None = None
        self._traceback = _Traceback()

    def take(self, line: Line) -> None:
        """Look at the next line."""
        for candidate in (self._found, self._wrapper):
            if candidate:
                candidate.take(line.text)
        if self._found is None and line.text.strip():
            self._judge(line)
        self._recent.append(line.text)

    def result(self) -> FatalLine | None:
        """Return the first fatal line of all that was taken."""
        best = self._found or self._wrapper
        return best.fatal_line() if best else None

    def _judge(self, line: Line) -> None:
        text = line.bare
        if self._traceback.open:
            raised = self._traceback.take(text)
        else:
            raised = not self._traceback.begin(text) and _is_fatal(text)
        if not raised:
            return
        if _WRAPPER.search(text):
            self._wrapper = self._wrapper or _Candidate(line, self._recent)
        else:
            self._found = _Candidate(line, self._recent)


class _Traceback:
    """Follows one Python traceback to the line that names its exception."""

    def __init__(self) -> None:
        self.open = False
        self._column = 0
        self._lines = 0
        self._benign = False
        self._last = ""

    def begin(self, text: str) -> bool:
        """Return whether a traceback starts here."""
        found = _TRACEBACK.search(text)
        if found:
            self.open, self._column, self._lines = True, -1, 0
            self._benign = bool(_QUIET_LEVEL.search(text[: found.start()]) or _BENIGN.search(self._last))
        self._last = text
        return bool(found)

    def take(self, text: str) -> bool:
        """Return whether this line names the exception, which ends the traceback."""
        self._lines += 1
        if self._column < 0 and _FRAME.search(text):
            self._column = text.index("  File ")  # the lines below a prefixed first line may have the prefix or not
        content = text[self._column :] if 0 < self._column < len(text) else text
        if _TRACEBACK.search(text):
            return self.begin(text) and False
        if self._lines > _TRACEBACK_LIMIT:
            self.open = False
        if not _RAISED.match(content) or _LEVEL_WORD.match(content) or not content.strip():
            return False
        if content.rstrip().endswith("raised:"):
            return False  # torch names the real exception on the next line
        wrapper = _WRAPPER.search(content)
        self.open = bool(wrapper)
        return not self._benign and not _BENIGN.search(content)


def _is_fatal(text: str) -> bool:
    if _BENIGN.search(text) or _QUIET_LEVEL.search(text[:80].replace("NCCL WARN", "")):
        return False
    return bool(_LEVEL.search(text) or _EXCEPTION.search(text) or _PROGRAM.search(text))
