"""Find and follow the logs of a run across its stages and services."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rlbox.foreign import whole_number
from rlbox.job.names import ATTEMPT_PREFIX
from rlbox.system.safe_files import list_directory_empty_if_missing
from rlbox.system.tail import FileFollower, find_last_lines_offset


def list_logs(run_dir: Path, stage: str | None, log_name: str | None, earlier_attempt: int | None = None) -> list[Path]:
    """Return the logs of a run in the order of its stages.

    `stage`, `log_name`: Only those of this stage, and of this name (`stage`, or the name of a service).
    `earlier_attempt`: Those of an earlier attempt, which lie in a folder of their own.
    """
    root = run_dir / "stages"
    folders = (
        root / name / f"{ATTEMPT_PREFIX}{earlier_attempt}" if earlier_attempt else root / name for name in _names(root)
    )
    paths = [folder / name for folder in folders for name in _names(folder) if fnmatch.fnmatch(name, "[!.]*.log")]
    return [
        path
        for path in sorted(paths, key=lambda path: (_number(path, root), path.name))
        if (stage is None or _folder(path, root).partition("-")[2] == stage)
        and (log_name is None or path.stem == log_name)
    ]


def _names(folder: Path) -> list[str]:
    try:
        return list_directory_empty_if_missing(folder)
    except OSError:
        return []


class LogChunk(NamedTuple):
    log: Path
    data: bytes


class LogFollower:
    """What the logs of a run gain from now on, after their last few lines."""

    def __init__(self, run_dir: Path, stage: str | None, log_name: str | None, lines: int) -> None:
        self._run_dir = run_dir
        self._stage = stage
        self._log = log_name
        self._tails: dict[Path, FileFollower] = {}
        ages = {path: _grown_at(path) for path in self._find()}
        latest = max(ages, key=lambda path: ages[path], default=run_dir).parent
        for path in ages:  # of the stage that wrote last the end is shown, of those before it nothing
            with contextlib.suppress(OSError):
                self._tails[path] = FileFollower(
                    path, find_last_lines_offset(path, lines if path.parent == latest else 0)
                )

    def read(self) -> Iterator[LogChunk]:
        for path in self._find():
            tail = self._tails.setdefault(path, FileFollower(path))
            with contextlib.suppress(OSError):  # no log, whatever has its name
                if data := tail.read():
                    yield LogChunk(path, data)

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()

    def _find(self) -> list[Path]:
        return list_logs(self._run_dir, self._stage, self._log)


def _grown_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _folder(path: Path, root: Path) -> str:
    return path.relative_to(root).parts[0]


def _number(path: Path, root: Path) -> int:
    return whole_number(_folder(path, root).partition("-")[0]) or 0
