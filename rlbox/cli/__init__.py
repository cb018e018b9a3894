"""The command line: one entry, one error handler, one file per command that is only imported when it is typed."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    try:
        from rlbox.cli.failure import reopen_std_streams_and_escape_unencodable
        from rlbox.cli.root import run_root

        if argv is None:
            reopen_std_streams_and_escape_unencodable()
        return run_root(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return 130
