"""What every program of the job shares: one-line errors, few threads, no network, no stray files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn


class JobError(Exception):
    """Something the user can act on. The text says what, where and what next, in one line."""


def run(name: str, main: Callable[[], None]) -> NoReturn:
    """Run `main` and exit: 0 when it returns, 1 with one line on stderr for a `JobError`, 130 on Ctrl-C.

    Parameters
    ----------
    name
        Program name shown before the message, for example `smoke.train`.

    SIGTERM keeps its default action (the process ends at once): everything of value is written by rename.
    """
    try:
        main()
    except JobError as error:
        print(f"{name}: error: {error}", file=sys.stderr, flush=True)
        leave(1)
    except KeyboardInterrupt:
        leave(130)
    leave(0)


def leave(code: int) -> NoReturn:
    """Flush and end the process without interpreter shutdown.

    Source: torch and Ray threads made a normal exit take 1-3 s more, and print warnings after the last line.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def settle(scratch: Path, threads: int) -> None:
    """Prepare the process before torch is imported: `threads` cores, offline hub, caches below `scratch`.

    Variables that are already set win, so that a launcher can decide otherwise.
    """
    defaults = {
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(scratch / "hf"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    for key, value in defaults.items():
        os.environ.setdefault(key, value)
