"""What every program of the job shares: errors in one line, and an end without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn


class JobError(Exception):
    """Something the user can act on. The text says what, where and what next, in one line."""


def run(name: str, main: Callable[[], None]) -> NoReturn:
    """Run `main` and exit: 0 when it returns, 1 with one line on stderr for a `JobError`, 130 on Ctrl-C."""
    try:
        main()
    except JobError as error:
        print(f"{name}: error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)
