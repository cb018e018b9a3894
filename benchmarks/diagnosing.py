"""Goals 23 to 25: `rlbox diagnose` over a healthy log of a gigabyte, with the whole catalogue, beside ripgrep.

A healthy log is the worst case: nothing ends the search, and its lines hold errors that are none. ripgrep looks for 120
patterns (`signatures-120.txt`), which is what it can do: the whole catalogue as one automaton takes it minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.loglines import LogMaker, write_log
from benchmarks.pairs import Case, NotHere, Sample, Unusable
from benchmarks.place import Place, find_tool, run
from rlbox.diagnose.act.catalogue import load_catalogue
from rlbox.diagnose.act.follow import GrowingLogs
from rlbox.diagnose.act.sources import Source
from rlbox.spec.project import Project

LOG_BYTES, FEW_BYTES = 1 << 30, 2 << 20
MEMORY = 200e6  # bytes that a log of any length may cost
SYNTHETIC = 500
PATTERNS = Path(__file__).with_name("signatures-120.txt")
_HEALTHY = '"fatal": false'
_WITHOUT = """
import sys
from pathlib import Path
from rlbox.diagnose.act.catalogue import load_catalogue
from rlbox.diagnose.act.diagnose import diagnose
from rlbox.spec.project import Project
found = diagnose([sys.argv[1]], load_catalogue(Project(folder=Path(sys.argv[2])).fix_files()), engine="re2")
print('"fatal": ' + str(found.fatal).lower(), found.as_json()["signatures"])
"""

_MEASURED = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(used.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@dataclass(frozen=True)
class _Log:
    """The log, a folder of signatures that nobody else has, and how ripgrep ends on the log."""

    path: Path
    pack: Path
    ripgrep: tuple[str, ...]
    code: int


def whole_catalogue(place: Place) -> Sample:
    """`rlbox diagnose` with the shipped catalogue, scanned by Hyperscan."""
    log = place.kept.get(_log)
    _needs_hyperscan()
    return place.compare(_diagnose(place, log), _ripgrep(place, log))


def five_hundred_more(place: Place) -> Sample:
    """The same with 500 further signatures, each of which names a text of its own that is looked for."""
    log = place.kept.get(_log)
    _needs_hyperscan()
    return place.compare(_diagnose(place, log, "--signatures", str(log.pack)), _ripgrep(place, log))


def without_hyperscan(place: Place) -> Sample:
    """What RE2 alone takes for it."""
    log = place.kept.get(_log)
    argv = (sys.executable, "-c", _WITHOUT, str(log.path), str(place.project))
    return place.compare(place.case(argv, name="diagnose with RE2", says=_HEALTHY), _ripgrep(place, log))


def memory(place: Place) -> Sample:
    """The peak memory of `rlbox diagnose` on that log, against the 200 MB that it may take."""
    log = place.kept.get(_log)
    case = _diagnose(place, log)
    peaks = [_peak(case) for _ in range(place.rounds)]
    return Sample(ours=tuple(peaks), anchor=(MEMORY,) * len(peaks), unit="B")


def appended(place: Place) -> Sample:
    """What a follower that has read the log takes for a further MB and its verdict, against `import click`.

    Raises
    ------
    Unusable
        It read more or less than was appended.
    """
    log = place.kept.get(_log)
    catalogue = load_catalogue(Project(folder=place.project).fix_files())
    more = LogMaker(11).block()
    with _Grown(log.path) as grow:
        logs = GrowingLogs([Source(name=log.path.name, path=log.path)], catalogue)
        while logs.read():
            pass
        _ = logs.diagnosis

        def scan() -> float:
            grow(more)
            began = time.perf_counter()
            count = logs.read()
            found = logs.diagnosis
            seconds = time.perf_counter() - began
            if count != len(more) or found.fatal:
                raise Unusable(f"read {count} of {len(more)} bytes, fatal {found.fatal}")
            return seconds

        return place.compare(scan, place.python("import click"))


class _Grown:
    """A log that may be appended to; it is as long as before in the end."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, path.stat().st_size

    def __enter__(self) -> Callable[[bytes], None]:
        return self._grow

    def _grow(self, data: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(data)

    def __exit__(self, *_: object) -> None:
        os.truncate(self._path, self._size)


def _log(place: Place) -> _Log:
    path = place.folder / "train.log"
    write_log(path, place.pick(LOG_BYTES, FEW_BYTES))
    pack = place.folder / "pack"
    pack.mkdir()
    (pack / "synthetic.toml").write_text(_synthetic(SYNTHETIC))
    program = find_tool("rg")
    if program is None:
        raise NotHere("no ripgrep on PATH; scripts/ensure-test-tools.sh brings it")
    argv = (program, "-j1", "-a", "-c", "-f", str(PATTERNS), str(path))
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise Unusable(f"{' '.join(argv)}: {done.stderr[-500:]}")
    return _Log(path, pack, argv, done.returncode)


def _synthetic(count: int) -> str:
    """Return a file of signatures that differ in a word that no library has."""
    rows = ['title = "made for a benchmark"', 'heals = ["synthetic"]', 'remedy = "none"']
    for number in range(count):
        word = f"zq{number:03}xv"
        rows += ["", "[[signature]]", f"pattern = 'part {word} of the .{{1,40}} failed to settle'"]
        rows += [f'anchor = ["part {word} of"]', f'example = "part {word} of the pump failed to settle"']
    return "\n".join(rows) + "\n"


def _diagnose(place: Place, log: _Log, *words: str) -> Case:
    return place.rlbox("diagnose", str(log.path), "--json", *words, says=_HEALTHY)


def _ripgrep(place: Place, log: _Log) -> Case:
    return place.case(log.ripgrep, name="ripgrep", exit_code=log.code)


def _peak(case: Case) -> float:
    """Return the peak memory of a command in bytes; its parent is small, for Linux counts that one too."""
    argv = (sys.executable, "-I", "-S", "-c", _MEASURED, *case.argv)
    return float(int(run(argv, env=case.env, cwd=case.cwd)) << 10)


def _needs_hyperscan() -> None:
    try:
        import hyperscan  # noqa: F401
    except ImportError as error:
        raise NotHere("hyperscan is not installed") from error
