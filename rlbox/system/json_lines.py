"""Lines of JSON objects, as records and metrics hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rlbox.foreign import parse_json


def json_rows(lines: Iterable[bytes | str]) -> Iterator[dict[str, Any]]:
    """Return the objects among `lines`; torn lines, as a kill leaves them, are passed over."""
    for line in lines:
        if line.isspace():
            continue
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row
