"""Goals 1 to 3: how long rlbox takes to say something that needs no work."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

from benchmarks.pairs import Sample, Unusable
from benchmarks.place import Place

HEAVY = ("docker", "jinja2", "pydantic", "requests", "rich", "urllib3", "yaml")


def words(*argv: str, exit_code: int = 0) -> Callable[[Place], Sample]:
    """Return the measurement of `rlbox ARGV` against `import click`."""

    def measure(place: Place) -> Sample:
        return place.compare(place.rlbox(*argv, exit_code=exit_code), place.python("import click"))

    return measure


def root_help(place: Place) -> Sample:
    """`rlbox --help`, after the exact test on what it imports."""
    argv = (sys.executable, "-X", "importtime", "-m", "rlbox", "--help")
    told = subprocess.run(argv, cwd=place.project, env=place.env, capture_output=True, text=True, check=True).stderr
    if heavy := sorted(set(HEAVY) & set(re.findall(r"\| +([\w.]+)$", told, re.MULTILINE))):
        raise Unusable(f"rlbox --help imports {', '.join(heavy)}")
    return words("--help")(place)


def tab(text: str, offers: str) -> Callable[[Place], Sample]:
    """Return the measurement of what a shell waits for when TAB is pressed after `text`."""

    def measure(place: Place) -> Sample:
        env = {"_RLBOX_COMPLETE": "bash_complete", "COMP_WORDS": text, "COMP_CWORD": str(len(text.split()) - 1)}
        return place.compare(place.rlbox(env=env, says=offers), place.python("import click"))

    return measure
