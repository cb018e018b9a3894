"""The same run told in another order: lanes keep their own order, and are shuffled into each other anew."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

_LANE = re.compile(r"^\S+ +\| (?:\[default\d+\]:)?")


def shuffled(log: str, seed: int) -> str:
    """Return a merged log with the lines of its lanes interleaved otherwise; a lane is a node and a local rank.

    A line that names no lane belongs to the one before it.
    """
    lanes: dict[str, list[list[str]]] = {}
    last = ""
    for line in log.splitlines(keepends=True):
        found = _LANE.match(line)
        if found or not last:
            last = found.group() if found else ""
            lanes.setdefault(last, []).append([line])
        else:
            lanes[last][-1].append(line)
    return "".join(line for group in _drawn(list(lanes.values()), seed) for line in group)


def merged(logs: Mapping[str, str], seed: int) -> str:
    """Return the files of a run as one log, each line behind the name of its file."""
    lanes = [[[f"{name} | {line}"] for line in text.splitlines(keepends=True)] for name, text in sorted(logs.items())]
    return "".join(line for group in _drawn(lanes, seed) for line in group)


def _drawn(lanes: list[list[list[str]]], seed: int) -> list[list[str]]:
    order = [number for number, lane in enumerate(lanes) for _ in lane]
    random.Random(seed).shuffle(order)
    heads = [iter(lane) for lane in lanes]
    return [next(heads[number]) for number in order]
