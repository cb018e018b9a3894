"""Files of metrics below a run directory: `metrics.jsonl`, verl's file logger, TensorBoard, W&B, `trainer_state.json`.

Files are recognized by name and first bytes, and read as they grow. Field numbers are those of
tensorflow/core/util/event.proto, summary.proto and tensor.proto, and of wandb_internal.proto.
"""

from __future__ import annotations

import contextlib
import math
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rlbox.foreign import parse_untrusted_json
from rlbox.job.names import ATTEMPT_PREFIX, METRICS_FILE
from rlbox.system.safe_files import open_regular_file, walk_non_directories
from rlbox.system.tail import BLOCK

_DEEPEST = 7
"""Folders below the run directory: `stages/1-train/checkpoints/runs/DATE_HOST/` is five."""
_MOST_ENTRIES = 50_000
_MOST_FILES = 100
_LARGEST_RECORD = 256 << 20
_CHECKPOINT = re.compile(r"/?checkpoint-\d+$")
_VERL_ROW = re.compile(rb'\{"step": ?-?\d+, ?"data": ?\{')
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, struct.error)
"""What parsers raise for bytes of another format."""

_STEP_NAMES = (
    "training/global_step", "train/global_step", "global_step", "train/step", "rollout/step", "eval/global_step",
    "eval/step", "step", "rollout", "iteration", "_step",
)  # fmt: skip
"""verl, Transformers and OpenRLHF, slime; `_step` is W&B's own counter of calls."""
_TIME_NAMES = ("time", "timestamp", "_timestamp")
_LARGEST_STEP = 1 << 53
_OLDEST_UNIX_S = 1e9
_TENSOR_FORMATS = {1: ("<f", 5), 2: ("<d", 6)}
"""By type (DT_FLOAT, DT_DOUBLE): format of one value, and the field for values of the type."""
_WANDB_HEADER = b":W&B\xe1\xbe\x00"
_WANDB_BLOCK = 32 * 1024


class StepMetrics(NamedTuple):
    """Values by the trainer's name; they may be NaN or infinite. `step` and `unix_s` are None where unknown."""

    step: int | None
    unix_s: float | None
    values: Mapping[str, float]
    stage: str = ""


class StepMetricsWithFormatAndFolder(NamedTuple):
    """`source` is the name of the format, and after a blank the folder of the file below the run directory."""

    source: str
    row: StepMetrics


def extract_step_metrics(record: Mapping[str, object]) -> list[StepMetrics]:
    """Return the numbers of a JSON object, nested names joined by dots; `null` is NaN, as orjson writes it."""
    values = dict(_iter_numbers(record, ""))
    step = next((int(values[name]) for name in _STEP_NAMES if abs(values.get(name, math.inf)) < _LARGEST_STEP), None)
    unix_s = next((values[name] for name in _TIME_NAMES if values.get(name, 0.0) > _OLDEST_UNIX_S), None)
    frame = {*_STEP_NAMES, *_TIME_NAMES}
    own = {name: value for name, value in values.items() if name not in frame and not name.startswith("_")}
    return [StepMetrics(step, unix_s, own, str(record.get("stage", "")))] if own else []


def _iter_numbers(record: Mapping[str, object], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            if "_type" not in value:  # a histogram, a table or an image of W&B
                yield from _iter_numbers(value, f"{prefix}{key}.")
        elif value is None:
            yield f"{prefix}{key}", math.nan
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{key}", float(value)


class SplitRecords(NamedTuple):
    """The complete records at the beginning of some bytes, and how many bytes they take."""

    records: list[bytes]
    used_bytes: int


def _split_lines(data: bytes, _offset: int) -> SplitRecords:
    end = data.rfind(b"\n") + 1
    return SplitRecords(data[:end].splitlines(), end)


def _split_trainer_state(data: bytes, _offset: int) -> SplitRecords:
    """Return the file as one record; Transformers writes it once, with indentation."""
    return SplitRecords([data], len(data)) if data.rstrip().endswith(b"\n}") else SplitRecords([], 0)


def _parse_json_line(line: bytes) -> list[StepMetrics]:
    row = parse_untrusted_json(line)
    if "eval" in row:  # of another kind than the rows of steps next to it
        row = {f"eval {key}" if isinstance(value, float) else key: value for key, value in row.items()}
    return extract_step_metrics(row)


def _parse_verl_line(line: bytes) -> list[StepMetrics]:
    row = parse_untrusted_json(line)
    return extract_step_metrics({**row["data"], "training/global_step": row["step"]})


def _parse_trainer_state(record: bytes) -> list[StepMetrics]:
    return [row for entry in parse_untrusted_json(record)["log_history"] for row in extract_step_metrics(entry)]


def _split_tfrecords(data: bytes, _offset: int) -> SplitRecords:
    """Checksums are not compared: CRC-32C of images takes seconds in Python."""
    records, at = [], 0
    while at + 12 <= len(data):  # uint64 length and its checksum, the record, its checksum
        end = at + 12 + int.from_bytes(data[at : at + 8], "little")
        if end + 4 > len(data):
            break
        records.append(data[at + 12 : end])
        at = end + 4
    return SplitRecords(records, at)


def _parse_tensorboard_event(record: bytes) -> list[StepMetrics]:
    """Return the scalars of an Event, as `simple_value` or as a tensor of one element."""
    event = _parse_protobuf(record)
    values = dict[str, float]()
    for message in (value for summary in event.get(5, []) for value in _parse_protobuf(summary).get(1, [])):
        fields = _parse_protobuf(message)
        for number in _read_scalar(fields):
            values[fields[1][0].decode()] = number
    step = event.get(2, [0])[0]
    signed = step - (1 << 64) if step >> 63 else step
    return [StepMetrics(signed, struct.unpack("<d", event[1][0])[0], values)] if values else []


def _read_scalar(summary_value: Mapping[int, list[Any]]) -> tuple[float, ...]:
    if 2 in summary_value:
        return struct.unpack("<f", summary_value[2][0])
    tensor = _parse_protobuf(summary_value[8][0]) if 8 in summary_value else {}
    layout, field = _TENSOR_FORMATS.get(tensor.get(1, [0])[0], ("", 0))
    data = tensor.get(4, tensor.get(field, [b""]))[0]
    return struct.unpack(layout, data) if layout and len(data) == struct.calcsize(layout) else ()


def _split_wandb_records(data: bytes, offset: int) -> SplitRecords:
    """Split bytes from `offset` of a file; what follows a damaged fragment counts as incomplete."""
    records, record = list[bytes](), b""
    at = used = len(_WANDB_HEADER) if data.startswith(_WANDB_HEADER) and not offset else 0
    while at + 7 <= len(data) and offset + at:
        left = _WANDB_BLOCK - (offset + at) % _WANDB_BLOCK
        if left < 7:  # zeros up to the next block
            at += left
            continue
        checksum, size, kind = struct.unpack_from("<IHB", data, at)
        end = at + 7 + size
        if end > len(data) or checksum != zlib.crc32(data[at + 6 : end]):
            break
        record = data[at + 7 : end] if kind in (1, 2) else record + data[at + 7 : end]  # full, first
        at = end
        if kind in (1, 4):  # full, last
            records.append(record)
            used = at
    return SplitRecords(records, used)


def _parse_wandb_history(record: bytes) -> list[StepMetrics]:
    """Return the numbers of one call of `wandb.log`; none for all other records."""
    values: dict[str, object] = {}
    for history in map(_parse_protobuf, _parse_protobuf(record).get(2, [])):
        for item in map(_parse_protobuf, history.get(1, [])):
            name = ".".join(part.decode() for part in item.get(1, item.get(2, [])))
            values[name] = parse_untrusted_json(item[16][0]) if 16 in item else None
        for step in history.get(2, []):
            values["_step"] = _parse_protobuf(step).get(1, [0])[0]
    return extract_step_metrics({name: value for name, value in values.items() if value is not None})


def _parse_protobuf(message: bytes) -> dict[int, list[Any]]:
    """Return the values of a message by field number: unsigned numbers of varints, bytes of all others."""
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        wire_type = tag & 7
        value, at = _read_varint(message, at) if wire_type in (0, 2) else ({1: 8, 5: 4}[wire_type], at)
        end = at + value if wire_type else at
        fields.setdefault(tag >> 3, []).append(message[at:end] if wire_type else value)
        at = end
    if at > len(message):
        raise ValueError("truncated protobuf message")
    return fields


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for byte in message[at : at + 10]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at + shift // 7
    raise ValueError("truncated protobuf varint")


_Split = Callable[[bytes, int], SplitRecords]
_Parse = Callable[[bytes], list[StepMetrics]]
_FORMATS: dict[str, tuple[str, _Split, _Parse]] = {
    METRICS_FILE: (r"(?:^|/)metrics\.jsonl$", _split_lines, _parse_json_line),
    "verl": (r"\.jsonl$", _split_lines, _parse_verl_line),
    "wandb": (r"(?:^|/)run-[^/]+\.wandb$", _split_wandb_records, _parse_wandb_history),
    "tensorboard": (r"tfevents\.\d[^/]*$", _split_tfrecords, _parse_tensorboard_event),
    "trainer_state": (r"(?:^|/)trainer_state\.json$", _split_trainer_state, _parse_trainer_state),
}
"""Pattern of the path, splitter and parser by name of the format.

The most exact come first: TensorBoard holds 32-bit numbers, and `trainer_state.json` is only written with checkpoints.
"""


class MetricFilesReader:
    """Reads the rows that files below a run directory gain; new files are looked for at each reading."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._files: dict[str, _GrowingFile] = {}
        self._seen_trainer_state_rows: set[str] = set()

    def read_new_rows(self) -> Iterator[StepMetricsWithFormatAndFolder]:
        """Yield new rows of all files, the most exact format first; a torn last record is read when it is complete."""
        for relative_path, facts in islice(walk_non_directories(self._run_dir, max_depth=_DEEPEST), _MOST_ENTRIES):
            is_old_attempt = f"/{ATTEMPT_PREFIX}" in f"/{relative_path}"
            if len(self._files) < _MOST_FILES and stat.S_ISREG(facts.st_mode) and not is_old_attempt:
                self._add_new_file_of_metrics(relative_path)
        order = list(_FORMATS)
        for file in sorted(self._files.values(), key=lambda file: order.index(file.source.partition(" ")[0])):
            for row in file.read_new_rows():
                if file.source.startswith("trainer_state"):  # each checkpoint's file repeats the rows before it
                    text = f"{file.source} {row}"
                    if text in self._seen_trainer_state_rows:
                        continue
                    self._seen_trainer_state_rows.add(text)
                yield StepMetricsWithFormatAndFolder(file.source, row)

    def _add_new_file_of_metrics(self, relative_path: str) -> None:
        path, folder = self._run_dir / relative_path, str(Path(relative_path).parent)
        for name, (pattern, split, parse) in _FORMATS.items():
            is_metrics = relative_path not in self._files and re.search(pattern, relative_path)
            if is_metrics and (name != "verl" or _begins_with_verl_row(path)):
                source = f"{name} {_CHECKPOINT.sub('', folder)}".removesuffix(" .")
                self._files[relative_path] = _GrowingFile(path, source, split, parse)


def _begins_with_verl_row(path: Path) -> bool:
    with contextlib.suppress(OSError), open_regular_file(path) as file:
        return _VERL_ROW.match(file.read(100)) is not None
    return False


@dataclass
class _GrowingFile:
    path: Path
    source: str
    split: _Split
    parse: _Parse
    offset: int = 0

    def read_new_rows(self) -> Iterator[StepMetrics]:
        size = BLOCK
        with contextlib.suppress(OSError), open_regular_file(self.path) as file:
            while size <= _LARGEST_RECORD:
                file.seek(self.offset)
                data = file.read(size)
                records, used_bytes = self.split(data, self.offset)
                self.offset += used_bytes
                for record in records:
                    with contextlib.suppress(*_UNREADABLE):
                        yield from self.parse(record)
                if len(data) < size:  # the rest is incomplete
                    return
                size = BLOCK if used_bytes else 2 * size
