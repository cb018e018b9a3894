"""Transaction logs of W&B (`run-ID.wandb`): LevelDB's log framing, and the history records in it.

Framing: LevelDB's doc/log_format.md, with a header of seven bytes and CRC-32 of zlib; messages: wandb_internal.proto.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from rlbox.foreign import parse_untrusted_json
from rlbox.logs.metric_row import MetricRow, make_metric_row
from rlbox.logs.protobuf import iter_protobuf_fields, list_submessages

_FILE_HEADER = b":W&B\xe1\xbe\x00"
_BLOCK = 32 * 1024
_FRAGMENT = struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4
_HISTORY, _ITEM, _STEP, _STEP_NUMBER = 2, 1, 2, 1
_KEY, _NESTED_KEY, _INTEGER, _NUMBER, _VALUE_JSON = 1, 2, 5, 6, 16


class WandbRecordSplitter:
    """Returns the complete records of a growing file; fragments of an incomplete one wait for the others."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._offset = 0
        self._record: bytearray | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Raises ValueError: it is not a file of W&B. A damaged block is skipped."""
        self._rest += data
        records: list[bytes] = []
        if not self._offset:
            if not _FILE_HEADER.startswith(self._rest[: len(_FILE_HEADER)]):
                raise ValueError("not a W&B file of version 0")
            if len(self._rest) < len(_FILE_HEADER):
                return []
            self._drop(len(_FILE_HEADER))
        while (left := _BLOCK - self._offset % _BLOCK) <= len(self._rest) or len(self._rest) >= _FRAGMENT.size:
            if left < _FRAGMENT.size:  # zeros up to the next block
                self._drop(left)
                continue
            checksum, size, kind = _FRAGMENT.unpack_from(self._rest)
            end = _FRAGMENT.size + size
            if end > left or (end <= len(self._rest) and checksum != zlib.crc32(self._rest[_FRAGMENT.size - 1 : end])):
                if left > len(self._rest):
                    break
                self._record = None
                self._drop(left)
                continue
            if end > len(self._rest):
                break
            self._add_fragment(kind, bytes(self._rest[_FRAGMENT.size : end]), records)
            self._drop(end)
        return records

    def _drop(self, count: int) -> None:
        del self._rest[:count]
        self._offset += count

    def _add_fragment(self, kind: int, data: bytes, records: list[bytes]) -> None:
        if kind in (_FULL, _FIRST):
            self._record = bytearray()
        if self._record is None:  # what belongs to a damaged record
            return
        self._record += data
        if kind in (_FULL, _LAST):
            records.append(bytes(self._record))
            self._record = None


def parse_wandb_history(record: bytes) -> MetricRow | None:
    """Return the numbers of one call of `wandb.log`; None for all other records.

    Raises ValueError: it is not a Record.
    """
    for history in list_submessages(record, _HISTORY):
        values = dict(filter(None, map(_parse_item, list_submessages(history, _ITEM))))
        for step in list_submessages(history, _STEP):
            values["_step"] = dict(iter_protobuf_fields(step)).get(_STEP_NUMBER, 0)
        return make_metric_row(values)
    return None


def _parse_item(item: bytes) -> tuple[str, Any] | None:
    path: list[str] = []
    value: Any = None
    for number, data in iter_protobuf_fields(item):
        if number in (_KEY, _NESTED_KEY) and isinstance(data, bytes):
            path.append(data.decode("utf-8", "replace"))
        elif number == _VALUE_JSON and isinstance(data, bytes):
            value = parse_untrusted_json(data)
        elif number == _NUMBER and isinstance(data, bytes):
            value = struct.unpack("<d", data)[0]
        elif number == _INTEGER and isinstance(data, int):
            value = data >> 1 ^ -(data & 1)  # sint64
    return (".".join(path), value) if path and value is not None else None
