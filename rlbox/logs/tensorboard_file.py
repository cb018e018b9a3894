"""TensorBoard event files: TFRecord framing, and the scalars of an Event, as `simple_value` or as a tensor.

Messages: tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto, tensor.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from rlbox.logs.metric_row import MetricRow
from rlbox.logs.protobuf import iter_protobuf_fields, list_submessages, to_signed

_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4
_LARGEST_RECORD = 256 << 20
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_SUMMARY_VALUE, _TAG, _SIMPLE_VALUE, _TENSOR, _METADATA = 1, 1, 2, 8, 9
_PLUGIN_DATA, _PLUGIN_NAME = 1, 1
_DTYPE, _TENSOR_CONTENT = 1, 4
_TENSOR_FORMATS = {1: ("<f", 5), 2: ("<d", 6)}
"""By number of the type (DT_FLOAT, DT_DOUBLE): format of one value, and the field that holds values of the type."""


class TfRecordSplitter:
    """Returns the complete records of a growing file; an incomplete last record waits for its other bytes."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Raises ValueError: the file is damaged; there is no way to find the next record."""
        self._rest += data
        records, at = [], 0
        while len(self._rest) - at >= _HEADER.size:
            size, checksum = _HEADER.unpack_from(self._rest, at)
            # only the length is checked: CRC-32C of images and histograms takes seconds in Python
            if size > _LARGEST_RECORD or checksum != compute_masked_crc32c(self._rest[at : at + 8]):
                raise ValueError("damaged TFRecord header")
            end = at + _HEADER.size + size + _FOOTER_BYTES
            if end > len(self._rest):
                break
            records.append(bytes(self._rest[at + _HEADER.size : end - _FOOTER_BYTES]))
            at = end
        del self._rest[:at]
        return records


def parse_tensorboard_event(record: bytes) -> MetricRow | None:
    """Return the scalars of an event; None where it has none. Raises ValueError: it is not an Event."""
    unix_s, step, values = 0.0, 0, dict[str, float]()
    for number, value in iter_protobuf_fields(record):
        if number == _WALL_TIME and isinstance(value, bytes):
            unix_s = struct.unpack("<d", value)[0]
        elif number == _STEP and isinstance(value, int):
            step = to_signed(value)
        elif number == _SUMMARY and isinstance(value, bytes):
            values |= dict(_iter_scalars(value))
    return MetricRow(step=step, unix_s=unix_s, values=values) if values else None


def _iter_scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for message in list_submessages(summary, _SUMMARY_VALUE):
        fields = dict(iter_protobuf_fields(message))
        tag, simple, tensor = fields.get(_TAG), fields.get(_SIMPLE_VALUE), fields.get(_TENSOR)
        if not isinstance(tag, bytes):
            continue
        if isinstance(simple, bytes):
            yield tag.decode("utf-8", "replace"), struct.unpack("<f", simple)[0]
        elif isinstance(tensor, bytes) and _is_scalar_plugin(fields.get(_METADATA)):
            for value in _read_single_value(tensor):
                yield tag.decode("utf-8", "replace"), value


def _is_scalar_plugin(metadata: int | bytes | None) -> bool:
    """Return whether a tensor is a scalar; writers may leave out the metadata after the first value of a tag."""
    plugins = list_submessages(metadata, _PLUGIN_DATA) if isinstance(metadata, bytes) else []
    return all(b"scalars" in list_submessages(plugin, _PLUGIN_NAME) for plugin in plugins)


def _read_single_value(tensor: bytes) -> tuple[float, ...]:
    fields = dict(iter_protobuf_fields(tensor))
    dtype = fields.get(_DTYPE)
    if not isinstance(dtype, int) or dtype not in _TENSOR_FORMATS:
        return ()
    layout, values_field = _TENSOR_FORMATS[dtype]
    data = fields.get(_TENSOR_CONTENT, fields.get(values_field))
    return struct.unpack(layout, data) if isinstance(data, bytes) and len(data) == struct.calcsize(layout) else ()


def compute_masked_crc32c(data: bytes | bytearray) -> int:
    """Return the checksum of TFRecord: CRC-32C, rotated and moved by a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _make_crc32c_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC_TABLE = _make_crc32c_table()
