"""Goals 23: `rlbox diagnose` over a healthy log of a gigabyte, with the whole catalogue, beside ripgrep.

A healthy log is the worst case: nothing ends the search, and its lines hold errors that are none. ripgrep looks for 120
patterns (`signatures-120.txt`), which is what it can do: the whole catalogue as one automaton takes it minutes.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.loglines import write_log
from benchmarks.pairs import Case, NotHere, Sample, Unusable
from benchmarks.place import Place, find_tool, run

LOG_BYTES, FEW_BYTES = 1 << 30, 2 << 20
MEMORY = 200e6  # bytes that a log of any length may cost
PATTERNS = Path(__file__).with_name("signatures-120.txt")
_HEALTHY = '"fatal": false'
_MEASURED = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(used.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@dataclass(frozen=True)
class _Log:
    """The log, and how ripgrep ends on it."""

    path: Path
    ripgrep: tuple[str, ...]
    code: int


def whole_catalogue(place: Place) -> Sample:
    """`rlbox diagnose` with the shipped catalogue."""
    log = place.kept.get(_log)
    return place.compare(_diagnose(place, log), _ripgrep(place, log))


def memory(place: Place) -> Sample:
    """The peak memory of `rlbox diagnose` on that log, against the 200 MB that it may take."""
    log = place.kept.get(_log)
    case = _diagnose(place, log)
    peaks = [_peak(case) for _ in range(place.rounds)]
    return Sample(ours=tuple(peaks), anchor=(MEMORY,) * len(peaks), unit="B")


def _log(place: Place) -> _Log:
    path = place.folder / "train.log"
    write_log(path, place.pick(LOG_BYTES, FEW_BYTES))
    program = find_tool("rg")
    if program is None:
        raise NotHere("no ripgrep on PATH; scripts/ensure-test-tools.sh brings it")
    argv = (program, "-j1", "-a", "-c", "-f", str(PATTERNS), str(path))
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise Unusable(f"{' '.join(argv)}: {done.stderr[-500:]}")
    return _Log(path, argv, done.returncode)


def _diagnose(place: Place, log: _Log) -> Case:
    return place.rlbox("diagnose", str(log.path), "--json", says=_HEALTHY)


def _ripgrep(place: Place, log: _Log) -> Case:
    return place.case(log.ripgrep, name="ripgrep", exit_code=log.code)


def _peak(case: Case) -> float:
    """Return the peak memory of a command in bytes; its parent is small, for Linux counts that one too."""
    argv = (sys.executable, "-I", "-S", "-c", _MEASURED, *case.argv)
    return float(int(run(argv, env=case.env, cwd=case.cwd)) << 10)
