"""Follow the logs of a run across its stages and services, wherever they grow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from rlbox.files.act.tail import Tail
from rlbox.job.names import ATTEMPT

STEP = 64 * 1024
FORWARD_LIMIT = 64 << 20
_BACK_LIMIT = 8 << 20


def find_logs(run_dir: Path, stage: str | None, log: str | None, attempt: int | None = None) -> list[Path]:
    """Return the logs of a run in the order of its stages.

    Parameters
    ----------
    stage, log
        Only those of this stage, and of this name (`stage`, or the name of a service).
    attempt
        Those of an earlier attempt, which lie in a folder of their own.
    """
    pattern = f"*/{ATTEMPT}{attempt}/*.log" if attempt else "*/*.log"
    root = run_dir / "stages"
    return [
        path
        for path in sorted(root.glob(pattern), key=lambda path: (_number(path, root), path.name))
        if (stage is None or _folder(path, root).partition("-")[2] == stage) and (log is None or path.stem == log)
    ]


class LogFollower:
    """What the logs of a run gain from now on, after their last few lines."""

    def __init__(self, run_dir: Path, stage: str | None, log: str | None, lines: int) -> None:
        self._run_dir = run_dir
        self._stage = stage
        self._log = log
        self._tails: dict[Path, Tail] = {}
        ages = {path: _grown_at(path) for path in self._find()}
        latest = max(ages, key=lambda path: ages[path], default=run_dir).parent
        for path in ages:  # of the stage that wrote last the end is shown, of those before it nothing
            with contextlib.suppress(OSError):
                self._tails[path] = Tail(path, _start_of_last(path, lines if path.parent == latest else 0))

    def read(self) -> Iterator[tuple[Path, bytes]]:
        """Yield what is new, a block of each log at most, with the log's path."""
        for path in self._find():
            tail = self._tails.setdefault(path, Tail(path))
            if data := tail.read():
                yield path, data

    def close(self) -> None:
        """Let go of all files."""
        for tail in self._tails.values():
            tail.close()

    def _find(self) -> list[Path]:
        return find_logs(self._run_dir, self._stage, self._log)


def _start_of_last(path: Path, lines: int) -> int:
    """Return the offset at which the last `lines` lines of a file begin, as far as they are in its last 64 KiB."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        start, found = lines_above(file, end, lines)
    return max(start if found else 0, end - STEP) if lines else end


def line_offset(file: BufferedReader, offset: int, lines: int) -> int:
    """Return where the line begins that is `lines` further down than the one at `offset`."""
    file.seek(offset)
    read = 0
    while lines > 0 and read < FORWARD_LIMIT and (block := file.read(STEP)):
        count = block.count(b"\n")
        if count < lines:
            lines -= count
            read += len(block)
            continue
        at = -1
        for _ in range(lines):
            at = block.index(b"\n", at + 1)
        return offset + read + at + 1
    return offset + read


def lines_above(file: BufferedReader, offset: int, lines: int) -> tuple[int, int]:
    """Return where the line begins that is at most `lines` above the one at `offset`, and how many it is above."""
    start, found = offset, 0
    limit = max(0, offset - _BACK_LIMIT)
    while start > limit:
        low = max(limit, start - STEP)
        file.seek(low)
        block = file.read(start - low)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            if low + at + 1 == offset:
                continue  # the end of the line above, which is not counted yet
            found += 1
            if found == lines:
                return low + at + 1, lines
        start = low
    if start == 0:
        return 0, found + 1 if offset else 0
    return line_offset(file, start, 1), found


def _grown_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _folder(path: Path, root: Path) -> str:
    return path.relative_to(root).parts[0]


def _number(path: Path, root: Path) -> int:
    number = _folder(path, root).partition("-")[0]
    return int(number) if number.isdigit() else 0
