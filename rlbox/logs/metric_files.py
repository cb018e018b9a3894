"""Files of metrics below a run directory: `metrics.jsonl`, verl's file logger, TensorBoard, W&B, `trainer_state.json`.

Files are recognized by name and first bytes, and read as they grow.
"""

from __future__ import annotations

import contextlib
import json
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rlbox.foreign import parse_untrusted_json
from rlbox.job.names import ATTEMPT_PREFIX, METRICS_FILE
from rlbox.logs.metric_row import MetricRow, make_metric_row
from rlbox.logs.tensorboard_file import TfRecordSplitter, parse_tensorboard_event
from rlbox.logs.wandb_file import WandbRecordSplitter, parse_wandb_history
from rlbox.system.safe_files import lstat_path, open_regular_file, read_bytes, walk_non_directories
from rlbox.system.tail import BLOCK

_DEEPEST = 7
"""Folders below the run directory: `stages/1-train/checkpoints/runs/DATE_HOST/` is five."""
_MOST_ENTRIES = 50_000
_MOST_FILES = 100
_LONGEST_LINE = 1 << 20
_STATE_FILE = "trainer_state.json"
_STATE_BYTES = 64 << 20
_CHECKPOINT = re.compile(r"checkpoint-\d+$")
_EVENT_FILE = re.compile(r"(?:^|\.)tfevents\.\d")
_WANDB_FILE = re.compile(r"^run-[^/]+\.wandb$")
_VERL_ROW = re.compile(rb'\{"step": ?-?\d+, ?"data": ?\{')


class _RecordSplitter(Protocol):
    def feed(self, data: bytes) -> list[bytes]: ...


@dataclass(frozen=True, kw_only=True)
class MetricFormat:
    """`parse` returns None for a record without numbers, and raises ValueError for one that it cannot read."""

    name: str
    make_splitter: Callable[[], _RecordSplitter]
    parse: Callable[[bytes], MetricRow | None]


class _LineSplitter:
    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            raise ValueError("line too long")
        return lines


def _parse_json_row(line: bytes) -> MetricRow | None:
    row = parse_untrusted_json(line)
    return make_metric_row(row) if isinstance(row, dict) else None


def _parse_verl_row(line: bytes) -> MetricRow | None:
    row = parse_untrusted_json(line)
    if not isinstance(row, dict) or not isinstance(row.get("data"), dict):
        return None
    return make_metric_row({**row["data"], "training/global_step": row.get("step")})


ROWS = MetricFormat(name=METRICS_FILE, make_splitter=_LineSplitter, parse=_parse_json_row)
VERL = MetricFormat(name="verl", make_splitter=_LineSplitter, parse=_parse_verl_row)
TENSORBOARD = MetricFormat(name="tensorboard", make_splitter=TfRecordSplitter, parse=parse_tensorboard_event)
WANDB = MetricFormat(name="wandb", make_splitter=WandbRecordSplitter, parse=parse_wandb_history)
TRAINER_STATE = "trainer_state"
FORMAT_NAMES = (METRICS_FILE, VERL.name, WANDB.name, TENSORBOARD.name, TRAINER_STATE)
"""The most exact first: TensorBoard holds 32-bit numbers, and `trainer_state.json` is only written with checkpoints."""


class MetricSource(NamedTuple):
    """Where rows come from: the format, and the folder of its files, relative to the run directory."""

    format_name: str
    folder: str


class SourcedRow(NamedTuple):
    source: MetricSource
    row: MetricRow


class MetricFilesReader:
    """Reads the rows that files below a run directory gain; files are looked for at each `find_new_files`."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._files: dict[str, _GrowingFile | _TrainerState] = {}
        self._log_rows_by_folder: dict[str, set[str]] = {}

    def find_new_files(self) -> None:
        entries = islice(walk_non_directories(self._run_dir, max_depth=_DEEPEST), _MOST_ENTRIES)
        for relative_path, facts in entries:
            if len(self._files) >= _MOST_FILES:
                return
            if relative_path not in self._files and stat.S_ISREG(facts.st_mode):
                self._add_file_if_metrics(relative_path)

    def skip_existing_rows(self) -> None:
        self.find_new_files()
        for file in self._files.values():
            file.skip_to_end()

    def read_new_rows(self) -> Iterator[SourcedRow]:
        """Yield new rows of all files, the most exact format first; a torn last record is read when it is complete."""
        for file in sorted(self._files.values(), key=lambda file: FORMAT_NAMES.index(file.source.format_name)):
            for row in file.read_new_rows():
                yield SourcedRow(file.source, row)

    def _add_file_if_metrics(self, relative_path: str) -> None:
        path = self._run_dir / relative_path
        folder = str(Path(relative_path).parent)
        if any(part.startswith(ATTEMPT_PREFIX) for part in Path(folder).parts):
            return
        if path.name == _STATE_FILE:
            output = str(Path(folder).parent) if _CHECKPOINT.search(folder) else folder
            seen = self._log_rows_by_folder.setdefault(output, set())
            self._files[relative_path] = _TrainerState(path, MetricSource(TRAINER_STATE, output), seen)
        elif file_format := _recognize_format(path):
            self._files[relative_path] = _GrowingFile(path, MetricSource(file_format.name, folder), file_format)


def read_all_metric_rows(run_dir: Path) -> Iterator[SourcedRow]:
    reader = MetricFilesReader(run_dir)
    reader.find_new_files()
    yield from reader.read_new_rows()


def _recognize_format(path: Path) -> MetricFormat | None:
    if path.name == METRICS_FILE:
        return ROWS
    if _EVENT_FILE.search(path.name):
        return TENSORBOARD
    if _WANDB_FILE.search(path.name):
        return WANDB
    if path.suffix == ".jsonl":
        with contextlib.suppress(OSError), open_regular_file(path) as file:
            return VERL if _VERL_ROW.match(file.read(100)) else None
    return None


class _GrowingFile:
    def __init__(self, path: Path, source: MetricSource, file_format: MetricFormat) -> None:
        self.source = source
        self._format = file_format
        self._splitter = file_format.make_splitter()
        self._path = path
        self._offset = 0
        self._is_damaged = False

    def skip_to_end(self) -> None:
        for _ in self._read_records():  # the next record begins where the last one ends, so all are split
            pass

    def read_new_rows(self) -> Iterator[MetricRow]:
        for record in self._read_records():
            with contextlib.suppress(ValueError):
                if row := self._format.parse(record):
                    yield row

    def _read_records(self) -> Iterator[bytes]:
        if self._is_damaged:
            return
        try:
            with open_regular_file(self._path) as file:
                file.seek(self._offset)
                while data := file.read(BLOCK):
                    self._offset += len(data)
                    yield from self._splitter.feed(data)
        except (OSError, ValueError):
            self._is_damaged = True


class _TrainerState:
    """`trainer_state.json` of Transformers: replaced as a whole, with the rows of all steps so far."""

    def __init__(self, path: Path, source: MetricSource, seen_rows: set[str]) -> None:
        self.source = source
        self._path = path
        self._seen_rows = seen_rows
        self._version: tuple[int, int] = (0, 0)

    def skip_to_end(self) -> None:
        for _ in self.read_new_rows():
            pass

    def read_new_rows(self) -> Iterator[MetricRow]:
        facts = lstat_path(self._path)
        version = (facts.st_mtime_ns, facts.st_size) if facts else self._version
        if version == self._version:
            return
        try:
            state = parse_untrusted_json(read_bytes(self._path, _STATE_BYTES))
        except (OSError, ValueError):  # being written: read again when it has changed
            return
        self._version = version
        for entry in state.get("log_history", []) if isinstance(state, dict) else []:
            if isinstance(entry, dict) and self._is_new(entry) and (row := make_metric_row(entry)):
                yield row

    def _is_new(self, entry: dict[str, Any]) -> bool:
        text = json.dumps(entry, sort_keys=True)
        is_new = text not in self._seen_rows
        self._seen_rows.add(text)
        return is_new
