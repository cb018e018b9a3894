"""Metrics and rates of a log, with the time of each line, from a log of any size in bounded time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rlbox.logs.file import Times
from rlbox.logs.throughput import Reading, find_candidates, read_progress
from rlbox.system.safe_files import open_regular_file

_BLOCK = 1 << 20
_BLOCKS = 64
"""Blocks of a log that are read at most: of a longer one that many, evenly spaced, its beginning and end among them."""

_STATES = 500
"""States of one line that are looked at, about."""


def read_log(path: Path) -> Iterator[tuple[float | None, Reading]]:
    """Return what the lines of a log tell, each with its time (seconds since 1970; None without a file of times).

    A file that is missing or cannot be read tells nothing.
    """
    times = Times(path)
    try:
        with open_regular_file(path) as file:
            for start, block in _blocks(file):
                for at, line in find_candidates(block):
                    for offset, text in _states(line):
                        if found := read_progress(text.decode("utf-8", "replace")):
                            yield times.at(start + at + offset), found
    except OSError:
        return


def _blocks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Return blocks of whole lines, each with its offset; a line over the edge belongs to the block before."""
    for start in _starts(os.fstat(file.fileno()).st_size):
        file.seek(start)
        begin = start + (len(file.readline(_BLOCK)) if start else 0)
        block = file.read(max(0, start + _BLOCK - begin)) + file.readline(_BLOCK)
        yield begin, block


def _states(line: bytes) -> Iterator[tuple[int, bytes]]:
    """Return the states of a line that was written over and over (a progress bar), each with its offset; not all."""
    states = line.split(b"\r")
    stride = max(1, len(states) // _STATES)
    offset = 0
    for number, state in enumerate(states):
        if state and (number % stride == 0 or number >= len(states) - 2):
            yield offset, state
        offset += len(state) + 1


def _starts(size: int) -> list[int]:
    if size <= _BLOCK * _BLOCKS:
        return list(range(0, size, _BLOCK))
    return [number * (size - _BLOCK) // (_BLOCKS - 1) for number in range(_BLOCKS)]
