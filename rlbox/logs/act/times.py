"""When a byte of a log was written: read from the `.times` file beside it."""

from __future__ import annotations

from pathlib import Path

from rlbox.logs.act.file import TIMES_SUFFIX


def time_at(log: Path, offset: int) -> float | None:
    """Return the Unix time, to a second, at which the byte at `offset` of `log` was written; None when nobody noted it.

    A row `OFFSET UNIX_MS` says that what was written from that time on begins there; rows are a second apart or more.
    """
    found: float | None = None
    try:
        with open(f"{log}{TIMES_SUFFIX}", encoding="ascii", errors="replace") as file:
            for row in file:
                begin, _, stamp = row.strip().partition(" ")
                if not begin.isdigit() or not stamp.isdigit():
                    continue  # torn by a kill
                if int(begin) > offset and found is not None:
                    break
                found = int(stamp) / 1000
    except OSError:
        return None
    return found
