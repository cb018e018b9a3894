"""The command line: one entry, one error handler, one file per command that is only imported when it is typed."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, by default the process's own, and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    try:
        if argv is None:  # this process is a command line, and Ctrl-C is meant for it
            from rlbox.cli.terminal import reopen_closed_streams, watch_interrupts

            watch_interrupts()
            reopen_closed_streams()
        from rlbox.cli.root import run_root

        return run_root(words)
    except KeyboardInterrupt:  # of the moments around a command, in which `watch_interrupts` is not in force
        return 130
