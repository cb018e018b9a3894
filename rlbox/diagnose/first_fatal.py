"""The first fatal line of each log of a running stage, and which of them is behind the cause."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from rlbox.diagnose.candidates import Candidate, classify_event
from rlbox.diagnose.cause import Cause, CauseKind
from rlbox.diagnose.diagnosis import Diagnosis, get_clipped_full_line
from rlbox.diagnose.event_reader import EventReader, IsExcused, LogReader
from rlbox.diagnose.events import make_line_event
from rlbox.diagnose.lines import is_known_earlier, parse_line
from rlbox.diagnose.root_cause import analyze_logs
from rlbox.diagnose.signatures import LogSignature, SignatureSet, read_stored_signatures_or_empty
from rlbox.diagnose.sources import LogSource, is_uncompressed_file
from rlbox.logs.lines import LineBlock, LineSplitter, strip_ansi_escapes
from rlbox.logs.log_file import LogTimes
from rlbox.system.safe_files import open_regular_fd, open_regular_file
from rlbox.system.tail import FORWARD_LIMIT, STEP, find_offset_lines_after, find_offset_lines_before

Grade = Literal["fatal", "noticed", "wrapper"]
"""How much a line tells: what failed; that somebody else is gone or that the end is near; that something failed."""
_GRADES: dict[str, Grade] = {"root": "fatal", "victim": "noticed", "death": "noticed", "relayed": "wrapper"}
NO_SIGNATURES = SignatureSet(())


@dataclass(frozen=True, kw_only=True)
class FatalPosition:
    """The first fatal line of a log, and where it is.

    The line numbered `seek_line_number` begins at byte `seek_byte_offset`, so that the line is found by a seek.
    `stated_clock` is the time as the line states it.
    """

    number: int
    text: str
    seek_line_number: int
    seek_byte_offset: int
    grade: Grade = "fatal"
    stated_clock: str = ""
    known: LogSignature | None = None


class FirstFatalFinder:
    """Looks for the first fatal line of one log while it grows, in flat memory.

    The same lines give the same answer however they are cut into blocks.
    """

    def __init__(self, benign: IsExcused | None = None, catalogue: SignatureSet = NO_SIGNATURES) -> None:
        self._catalogue = catalogue
        self._benign = benign
        self._found: FatalPosition | None = None
        self._is_current = True
        self._reader = EventReader(catalogue, is_excused=benign)

    @property
    def first_fatal(self) -> FatalPosition | None:
        """None when nothing looks fatal so far."""
        if not self._is_current:
            log = self._reader.collect_events_so_far()
            root = analyze_logs([log], self._catalogue).root if log.events else None
            self._found, self._is_current = _make_position(root) if root else None, True
        return self._found

    def feed(self, lines: LineBlock) -> None:
        self._reader.feed(lines)
        self._is_current = False

    def reset(self) -> None:
        """Forget all failures so far: the process has recovered from them."""
        self._reader = EventReader(self._catalogue, is_excused=self._benign)
        self._found, self._is_current = None, True


def _make_position(candidate: Candidate) -> FatalPosition:
    event = candidate.event
    return FatalPosition(
        number=candidate.line_number,
        text=get_clipped_full_line(candidate),
        seek_line_number=event.block_first_line_and_byte[0],
        seek_byte_offset=event.block_first_line_and_byte[1],
        grade=_GRADES[candidate.causal_role],
        stated_clock=event.log_line.clock or next((one.clock for one in event.exceptions if one.clock), ""),
        known=candidate.match.signature if candidate.match else None,
    )


CONTEXT_LINES = 100
"""Lines kept before and after the fatal one (DESIGN §6)."""

_BLOCK = 1 << 20
_SHOWN = 200


class _Context(NamedTuple):
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    offset: int = 0
    """The first byte of the line between them."""


def _read_context(log: Path, position: FatalPosition, *, follow_links: bool = False) -> _Context:
    """Return the lines around a fatal one as they are in the log; none when it cannot be read any more."""
    try:
        with open(open_regular_fd(log, follow_links=follow_links), "rb") as file:
            lines_below_seek = position.number - position.seek_line_number
            offset = find_offset_lines_after(file, position.seek_byte_offset, lines_below_seek)
            if lines_below_seek < 0:  # a traceback that ends in a later block
                offset, _lines = find_offset_lines_before(file, position.seek_byte_offset, -lines_below_seek)
            start, above = find_offset_lines_before(file, offset, CONTEXT_LINES)
            texts = _read_lines(file, start, above + 1 + CONTEXT_LINES)
    except OSError:
        return _Context()
    return _Context(tuple(texts[:above]), tuple(texts[above + 1 :]), offset)


def find_first_fatal(log: Path, catalogue: SignatureSet = NO_SIGNATURES) -> FatalPosition | None:
    """Return the first fatal line of a log that nobody followed; None when it has none or is missing."""
    reader = LogReader(EventReader(catalogue))
    for block in _read_raw_log_blocks(log):
        reader.feed(block)
    root = analyze_logs([reader.close()], catalogue).root
    return _make_position(root) if root else None


def _read_lines(file: BinaryIO, start: int, lines: int) -> list[str]:
    file.seek(start)
    splitter, read = LineSplitter(), 0
    texts: list[str] = []
    while len(texts) < lines and read < FORWARD_LIMIT and (block := file.read(STEP)):
        texts += splitter.feed(block)
        read += len(block)
    if len(texts) < lines:
        texts += splitter.close()
    return texts[:lines]


def _read_raw_log_blocks(path: Path, end_byte: int = sys.maxsize) -> Iterator[bytes]:
    """Yield the bytes before `end` in blocks of 1 MiB; nothing when the log cannot be read."""
    with contextlib.suppress(OSError), open_regular_file(path) as file:
        while block := file.read(min(_BLOCK, end_byte)):
            end_byte -= len(block)
            yield block


def read_root_excerpt_or_empty(diagnosis: Diagnosis, sources: Sequence[LogSource], context_lines: int = 5) -> str:
    """Return the lines around the root, it marked `>`; empty when its log cannot be read again."""
    if diagnosis.root is None:
        return ""
    path = sources[diagnosis.root.event.log_index].path_unless_stdin
    if path is None or not is_uncompressed_file(path):
        return ""
    position = _make_position(diagnosis.root)
    read = _read_context(path, position, follow_links=True)
    shown = _number_lines(position.number, position.text, read.before[-context_lines:], read.after[:context_lines])
    return "\n".join(f"{number} {strip_ansi_escapes(line)[:_SHOWN]}" for number, line in shown)


def _number_lines(number: int, text: str, before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[str, str]]:
    for at, line in enumerate((*before, text, *after), start=number - len(before)):
        yield f"{'>' if at == number else ' '}{at:7d}", line


_SAME_S = 1.5
"""Times of logs are noted to a second; within it, services come first: their clients suffer from what they say."""
_RELATED_S = 900.0
"""A line of a service that much before the stage's own is another story: the stage went on for long after it."""
_OWN_LOG: frozenset[CauseKind] = frozenset({"service", "ready"})


@dataclass(frozen=True, kw_only=True)
class LogFailure:
    """The first fatal line of one log, a path below the run directory, with up to `CONTEXT_LINES` lines around it."""

    log: str
    number: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    time_unix: float | None = None
    grade: Grade = "fatal"
    stated_clock: str = ""
    known: LogSignature | None = None


def read_log_failure(run_dir: Path, log_path_in_run: str, position: FatalPosition) -> LogFailure:
    context = _read_context(run_dir / log_path_in_run, position)
    return LogFailure(
        log=log_path_in_run,
        number=position.number,
        text=position.text,
        before=context.before,
        after=context.after,
        time_unix=LogTimes(run_dir / log_path_in_run).find_write_time_unix(context.offset),
        grade=position.grade,
        stated_clock=position.stated_clock,
        known=position.known,
    )


def read_last_line_as_failure(run_dir: Path, log_path_in_run: str) -> LogFailure | None:
    """Return the last line of a log that is not blank, with those above it."""
    try:
        with open_regular_file(run_dir / log_path_in_run) as file:
            start, _ = find_offset_lines_before(file, file.seek(0, os.SEEK_END), 2 * CONTEXT_LINES)
            texts = _read_lines(file, start, 2 * CONTEXT_LINES + 1)
    except OSError:
        return None
    while texts and not texts[-1].strip():
        texts.pop()
    if not texts:
        return None
    number = sum(block.count(b"\n") for block in _read_raw_log_blocks(run_dir / log_path_in_run, start)) + len(texts)
    before = tuple(texts[-CONTEXT_LINES - 1 : -1])
    return LogFailure(log=log_path_in_run, number=number, text=texts[-1].strip(), before=before, grade="wrapper")


def sort_failures_by_time_services_first(failures: Sequence[LogFailure]) -> tuple[LogFailure, ...]:
    """Return `failures` by time; at the same time by what the lines state themselves, else services first."""
    ordered: list[LogFailure] = []
    for fatal in sorted(failures, key=lambda fatal: fatal.log.endswith("/stage.log")):
        at = next((index for index, other in enumerate(ordered) if _before(fatal, other)), len(ordered))
        ordered.insert(at, fatal)
    return tuple(ordered)


def _before(one: LogFailure, other: LogFailure) -> bool:
    if is_known_earlier(one.stated_clock, other.stated_clock):
        return True
    return one.time_unix is not None and other.time_unix is not None and one.time_unix < other.time_unix - _SAME_S


def find_failure_behind_cause_or_read_last_line(
    cause: Cause, failures: Sequence[LogFailure], run_dir: Path
) -> LogFailure | None:
    """Return the fatal line that stands behind `cause`: the earliest that tells what failed.

    A dead service is explained by the logs of services only; the log of the cause is quoted by its last line when no
    log holds a fatal one.
    """
    own_s = next((fatal.time_unix for fatal in failures if fatal.log == cause.where), None)
    related = [
        fatal
        for fatal in failures
        if (own_s is None or fatal.time_unix is None or own_s - fatal.time_unix < _RELATED_S)
        and not (cause.kind in _OWN_LOG and fatal.log.endswith("/stage.log"))
    ]
    for grade in ("fatal", "noticed", "wrapper"):
        if graded := [fatal for fatal in related if fatal.grade == grade]:
            return graded[0]
    return read_last_line_as_failure(run_dir, cause.where) if cause.where else None


def format_excerpt(failure: LogFailure) -> str:
    lines = _number_lines(failure.number, failure.text, failure.before, failure.after)
    body = "\n".join(f"{number} {line}" for number, line in lines)
    when = f"  {format_utc_iso_seconds(failure.time_unix)}" if failure.time_unix is not None else ""
    return f"==> {failure.log}:{failure.number}{when}\n\n{body}\n"


def format_utc_iso_seconds(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, timezone.utc).isoformat(timespec="seconds")


SIGNATURES_FILE = "spec/signatures.json"


@functools.lru_cache(maxsize=4)
def read_run_signatures_or_empty(run_dir: Path) -> SignatureSet:
    return read_stored_signatures_or_empty(run_dir / SIGNATURES_FILE)


def find_failure_signature_of_line(line_text: str, run_dir: Path) -> LogSignature | None:
    """Return the signature that knows a line, of those stored with a run."""
    match = classify_event(make_line_event(parse_line(1, line_text), 1), read_run_signatures_or_empty(run_dir)).match
    return match.signature if match and match.signature.role != "benign" else None
