"""The diagnoses of this machine that ended in `unknown`, kept where this user alone reads them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlbox.diagnose.act.sources import Source, read_blocks
from rlbox.diagnose.read.clock import ClockTime, moment_of
from rlbox.diagnose.read.line import read_row
from rlbox.diagnose.verdict import UNKNOWN, Diagnosis
from rlbox.files.act.folders import make_folder, state_folder, write_atomic
from rlbox.files.act.rows import read_rows

if TYPE_CHECKING:
    from rlbox.diagnose.learn.unknowns import UnknownFailure

_FILE = "unknowns.jsonl"
_MOST = 1000
_MOST_BYTES = 4 << 20
_HEAD_LINES = 400
_LONGEST = 600
_YEAR_S = 366 * 24 * 3600.0


def keep(found: Diagnosis, sources: Sequence[Source], named: Sequence[str], environment: Mapping[str, str]) -> None:
    """Note a diagnosis whose cause stayed unknown, or take the note of the same logs away where it is known now.

    `named` are the logs as they were typed. Nothing is kept of standard input, nor where nothing can be written.
    """
    if not named or any(source.path is None for source in sources):
        return
    own = [str(Path(name).resolve()) for name in named]
    place = state_folder("diagnose", _FILE)
    unknown = found.root is not None and found.cause == UNKNOWN and not found.fix
    before = list(read_rows(place, _MOST_BYTES)) if place.exists() else []
    rows = [row for row in before if row.get("logs") != own]
    if not unknown and rows == before:
        return
    if unknown and found.root:
        from rlbox.secrets.masks import Masks

        text = Masks(environment).text(found.root.text.strip()[:_LONGEST])
        hours = _hours(sources[found.root.event.file], found.root.event.row.clock or found.root.event.near)
        ranks = {link.case.event.row.rank for link in found.chain} - {-1}
        gpus = max(ranks, default=-1) + 1
        rows.append({"text": text, "logs": own, "hours": hours, "gpus": gpus, "at": time.time()})
    with contextlib.suppress(OSError):
        if make_folder(place.parent):
            lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows[-_MOST:])
            write_atomic(place, lines, mode=0o600)


def kept() -> list[UnknownFailure]:
    """Return the failures that were noted."""
    from rlbox.diagnose.learn.unknowns import UnknownFailure

    found = []
    for row in read_rows(state_folder("diagnose", _FILE), _MOST_BYTES):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            logs = tuple(str(name) for name in row["logs"])
            found.append(
                UnknownFailure(
                    text=str(row["text"]),
                    of=logs,
                    hours=max(0.0, float(row["hours"])),
                    gpus=max(0, int(row["gpus"])),
                    there=all(Path(name).exists() for name in logs),
                    at=float(row["at"]),
                )
            )
    return found


def _hours(source: Source, said: str) -> float:
    """Return how long a log went on before a clock in it; 0 where its clocks do not say."""
    end = moment_of(said)
    begun = _first_clock(source) if end else None
    if not end or not begun or (begun.dated, begun.yeared) != (end.dated, end.yeared):
        return 0.0
    return (end.at_s - begun.at_s) / 3600 if 0 <= end.at_s - begun.at_s < _YEAR_S else 0.0


def _first_clock(source: Source) -> ClockTime | None:
    for block in read_blocks(source):
        for line in block.split(b"\n", _HEAD_LINES)[:_HEAD_LINES]:
            if found := moment_of(read_row(1, line.decode("utf-8", "replace")).clock):
                return found
        return None
    return None
