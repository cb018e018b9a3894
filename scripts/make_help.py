"""Write rlbox/cli/help.txt: what click prints for `rlbox --help` on a terminal of 80 columns.

`rlbox --help` answers from that file without importing click. Run it after a change to the verbs or their summaries:
`python scripts/make_help.py`; with `--check` it writes nothing and exits 1 when the file is stale.
"""

from __future__ import annotations

import sys

from click.testing import CliRunner

from rlbox.cli import HELP_TEXT
from rlbox.cli.root import root


def help_text() -> str:
    """Return the help of the root group as click prints it on a terminal of 80 columns."""
    done = CliRunner().invoke(root, ["--help"], prog_name="rlbox", env={"COLUMNS": "80"}, catch_exceptions=False)
    return done.output


def main() -> int:
    """Write the file, or with `--check` only compare; return the exit code."""
    text = help_text()
    if HELP_TEXT.read_text(encoding="utf-8") == text:
        return 0
    if "--check" in sys.argv[1:]:
        sys.stderr.write("rlbox/cli/help.txt is stale: python scripts/make_help.py\n")
        return 1
    HELP_TEXT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
