"""The command line: one entry, one error handler, one file per verb that is only imported when it is typed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

COMPLETION = "_RLBOX_COMPLETE"  # a shell that completes calls without words, and asks by this variable
HELP_TEXT = Path(__file__).with_name("help.txt")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    `--version` and `--help` are answered from text, before click is imported: that import is nearly all they cost. So
    are the plainest `build`, `shell` and `push` (cli/quick.py).
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--version"]:
        from rlbox import __version__

        sys.stdout.write(f"rlbox {__version__}\n")
        return 0
    if words in (["--help"], ["-h"], []) and COMPLETION not in os.environ:
        sys.stdout.write(HELP_TEXT.read_text(encoding="utf-8"))
        return 0
    from rlbox.cli.quick import offer_verbs, run_quickly

    if COMPLETION in os.environ:
        if (offers := offer_verbs(os.environ)) is not None:
            sys.stdout.write(offers)
            sys.exit(0)  # as click ends a completion
    elif (code := run_quickly(words)) is not None:
        return code
    from rlbox.cli.root import run_root

    return run_root(words)
