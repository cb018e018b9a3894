"""Find and follow the logs of a run across its stages and services."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rlbox.foreign import parse_digits
from rlbox.system.tail import FileFollower, find_last_lines_offset


def list_logs_or_empty(run_dir: Path, stage: str | None, log_name: str | None) -> list[Path]:
    """Return the logs of a run in the order of its stages.

    `stage`, `log_name`: Only those of this stage, and of this name (`stage`, or the name of a service).
    """
    root = run_dir / "stages"
    found = []
    for path in sorted(root.glob("*/[!.]*.log")):
        number, _, stage_name = path.relative_to(root).parts[0].partition("-")
        if stage in (None, stage_name) and log_name in (None, path.stem) and path.is_file():
            found.append((parse_digits(number) or 0, path.name, path))
    return [path for *_, path in sorted(found)]


class LogChunk(NamedTuple):
    log: Path
    data: bytes


class LogFollower:
    """What the logs of a run gain from now on, after their last few lines."""

    def __init__(self, run_dir: Path, stage: str | None, log_name: str | None, initial_lines: int) -> None:
        self._run_dir = run_dir
        self._stage = stage
        self._log = log_name
        self._tails: dict[Path, FileFollower] = {}
        paths = self._find()
        latest = max(paths, key=get_mtime_or_zero, default=run_dir).parent
        for path in paths:  # of the stage that wrote last the end is shown, of those before it nothing
            with contextlib.suppress(OSError):
                count = initial_lines if path.parent == latest else 0
                self._tails[path] = FileFollower(path, find_last_lines_offset(path, count))

    def iter_next_block_of_each_log(self) -> Iterator[LogChunk]:
        for path in self._find():
            tail = self._tails.setdefault(path, FileFollower(path))
            with contextlib.suppress(OSError):  # no log, whatever has its name
                if data := tail.read_next_block_or_empty():
                    yield LogChunk(path, data)

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()

    def _find(self) -> list[Path]:
        return list_logs_or_empty(self._run_dir, self._stage, self._log)


def get_mtime_or_zero(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # a stage that is tried again moves its logs
        return 0.0
