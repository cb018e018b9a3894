"""Files of JSON: one object, or lines of them; read within bounds, whoever wrote them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rlbox.foreign import parse_untrusted_json
from rlbox.system.safe_files import open_regular_fd, open_regular_file, read_bytes


def parse_valid_json_objects(lines: Iterable[bytes | str]) -> Iterator[dict[str, Any]]:
    """Return the objects among `lines`; torn lines, as a kill leaves them, are passed over."""
    for line in lines:
        if line.isspace():
            continue
        try:
            row = parse_untrusted_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


MAX_BYTES = 256 << 20
"""Of a file of lines that is read: its end. A run of weeks has a hundredth of that."""

_LONGEST_LINE = 1 << 20


def read_json_object_or_empty(path: Path, *, follow_links: bool = False) -> dict[str, Any]:
    """Return the object; empty when torn or anything else. `follow_links`: for files of this machine."""
    try:
        data = parse_untrusted_json(read_bytes(path, follow_links=follow_links))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def read_valid_json_from_tail_or_nothing(path: Path, max_bytes: int = MAX_BYTES) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(OSError):
        yield from parse_valid_json_objects(iter_tail_lines_or_raise(path, max_bytes))


def iter_tail_lines_or_raise(path: Path, max_bytes: int = MAX_BYTES) -> Iterator[bytes]:
    """Yield the lines among the last `max_bytes` of a file, a longer one than 1 MiB in pieces; raises `OSError`."""
    with open_regular_file(path) as file:
        begin = max(0, os.fstat(file.fileno()).st_size - max_bytes)
        if begin:
            file.seek(begin - 1)
            file.readline(_LONGEST_LINE)
        end = begin + max_bytes
        while file.tell() < end and (line := file.readline(_LONGEST_LINE)):
            yield line


class OpenPerLineAppender:
    """Appends lines to a file; after one that was cut short by a full disk, a new line is begun."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._torn = False

    def append(self, line: bytes) -> None:
        data = (b"\n" if self._torn else b"") + line + b"\n"
        handle = open_regular_fd(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._torn = True
        try:
            if os.write(handle, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(handle)
        self._torn = False
