"""The table of a run, as a file that is committed: `benchmarks/RESULTS.md`."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.finding import COLUMNS, HELD

CHECKOUT = Path(__file__).parents[1]
RESULTS = "benchmarks/RESULTS.md"
CHANGED = "with changes"
HEAD = """\
# Results of the benchmarks

Written by `make bench`. A ratio is the median over rounds in which rlbox and its anchor ran in turn; the times are of
this machine on this day. A missed gate was missed twice in a row. `benchmarks/goals.py` has the goals.

"""

Cells = tuple[str, ...]


def setting(rounds: str) -> dict[str, str]:
    """Return what decides whether two tables are of the same thing, but for the date."""
    return {"tree": _tree(), "machine": _machine(), "engine": _engine(), "rounds": rounds}


def table_text(setting: Mapping[str, str], rows: Sequence[Cells], load: str) -> str:
    """Return the file; `load` is what the machine did besides."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    facts = {"date": now, **setting, "load before": load}
    head = [f"- {name}: {value}" for name, value in facts.items()]
    lines = [COLUMNS, ["---"] * len(COLUMNS), *(_escaped(row) for row in rows)]
    return HEAD + "\n".join([*head, "", *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"


def kept_rows(text: str, setting: Mapping[str, str]) -> dict[str, Cells]:
    """Return the rows of an earlier table that need not be measured again, by the goal's key.

    None of another tree, machine or engine, or of a tree with changes that no commit has.
    """
    facts = dict(re.findall(r"^- ([a-z ]+): (.*)$", text, re.MULTILINE))
    if CHANGED in setting["tree"] or any(facts.get(name) != value for name, value in setting.items()):
        return {}
    found: dict[str, Cells] = {}
    for line in text.splitlines():
        cells = tuple(cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        if len(cells) == len(COLUMNS) and cells[-1].startswith(HELD):
            found[cells[0]] = cells
    return found


def load() -> str:
    """Return the machine's load of the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def _escaped(row: Cells) -> Cells:
    return tuple(cell.replace("|", r"\|") for cell in row)


def _tree() -> str:
    tree = _told("git", "rev-parse", "--short=12", "HEAD^{tree}")
    changed = _told("git", "status", "--porcelain", "--", ".", f":!{RESULTS}")
    return f"{tree or 'no git'}{f' {CHANGED}' if changed else ''}"


def _machine() -> str:
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    cores = len(os.sched_getaffinity(0))
    system = f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    return f"{cores} cores of {names[0] if names else platform.machine()}, {memory:.0f} GiB, {system}"


def _engine() -> str:
    version = _told("docker", "version", "--format={{.Server.Version}}")
    return f"Docker {version}, {_told('docker', 'info', '--format={{.Driver}}')}" if version else "none"


def _told(*argv: str) -> str:
    try:
        return subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
