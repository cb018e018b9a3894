"""Logs of hostile making through `rlbox diagnose`: no traceback, an answer that holds together, all within a second.

`python tests/fuzz/diagnosing.py --cases N --seed S [--seconds T]`: Hypothesis makes the logs, in rounds whose seeds
follow from S, so that a campaign goes on where it was stopped (`--progress FILE`), and a round that fell is made again
by its number (`--first N`). What it shows is the least log that it could find.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from rlbox.config.project import Project
from rlbox.diagnose.diagnose import GrowingLogs, diagnose_events
from rlbox.diagnose.diagnosis import Diagnosis, LogStats
from rlbox.diagnose.event_reader import EventReader, LogEvents, LogReader
from rlbox.diagnose.report import format_report
from rlbox.diagnose.signatures import SignatureSet, load_signatures
from rlbox.diagnose.sources import LogSource
from rlbox.foreign import parse_json

ROUND = 500
MOST_S = 1.0
CHECKOUT = Path(__file__).resolve().parents[2]
BEFORE = (
    "",
    "",
    "",
    "(W pid=1) ",
    "(W pid=2, ip=10.0.0.2) ",
    "[rank0]: ",
    "[rank99999]:",
    "0: ",
    "[1,0]<stderr>",
    "default1 ",
    "2026-01-01 00:00:00,000 ",
    "[E207 01:02:03.4 a.cpp:1] ",
    "ERROR 01-01 00:00:00 [a.py:1] ",
    "99:99:99 ",
    "Feb 30 25:61:61 ",
    "100%|###| 1/2 [00:01<00:02, 1.0it/s] ",
    "\x1b[31m",
    "\ufeff",
    "\x00",
    "#5 1.2 ",
    "  ",
    "\t",
    "| ",
    "+---- 1 ----\n",
)
SAID = (
    "Traceback (most recent call last):",
    '  File "/a/site-packages/torch/x.py", line 3, in f',
    '  File "a.py", line 1',
    "    raise ValueError(x)",
    "ValueError: a",
    "torch.OutOfMemoryError: CUDA out of memory.",
    "KeyError: 'a'",
    "AssertionError",
    "During handling of the above exception, another exception occurred:",
    "  ^^^^",
    "ERROR: ",
    "Killed",
    "step 1 loss 1.0",
    "The above exception was the direct cause of the following exception:",
    "1 validation error for A",
    "  Value error, b",
    "ray.exceptions.RayTaskError(ValueError): ray::f() (pid=1, ip=1.1.1.1)",
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=1) ran for 2 ms",
    "Bus error (core dumped)",
    '{"level": "error", "message": "a", "time": 1}',
    '{"log": "ValueError: a\\n", "time": "x"}',
    "Training completed",
    "Received 15 death signal, shutting down workers",
    "failed (exitcode: -9) local_rank: 0 (pid: 1) of binary: python",
    "thread 'a' panicked at a.rs:1:1:",
    "╭──── Traceback ────╮",
    "│ /a.py:1 in f │",
    "╰────╯",
    "exit code 137",
    "",
    "(raylet) [repeated 5x across cluster]",
    "Retrying in 5 seconds",
    "Exception ignored in: <f>",
    "POST / HTTP/1.1 200 OK",
    "OSError: [Errno 28] No space left on device: '/a/b'",
    "[Errno -",
    "***",
    "'" * 40,
    "(" * 70,
    "[" * 70,
    "\\d{1,",
    "é卡死\u202e",
)
_TEXT = st.text(max_size=40)
_PIECE = st.one_of(st.sampled_from(SAID), st.sampled_from(SAID), _TEXT)
_LINE = st.builds(
    lambda before, pieces: before + "".join(pieces), st.sampled_from(BEFORE), st.lists(_PIECE, max_size=3)
)
_LONG = st.builds(
    lambda text, count: text * count, st.sampled_from((*SAID, "a", "\x08", "\r")), st.sampled_from((900, 9000))
)
_LINES = st.lists(st.one_of(_LINE, _LINE, _LINE, _LINE, _LONG), max_size=14)
_END = st.sampled_from(("\n", "\n", "\n", "\r\n", "\r", ""))
LOG = st.one_of(
    st.builds(lambda lines, end: end.join([*lines, ""]).encode("utf-8", "surrogatepass"), _LINES, _END),
    st.builds(
        lambda lines, end: "\n".join(lines).encode("utf-8", "surrogatepass") + end, _LINES, st.binary(max_size=9)
    ),
    st.binary(max_size=200),
)
"""The bytes of a log: lines that programs say, in any order, glued, cut, repeated; text of anybody; no text at all."""
LOGS = st.lists(LOG, min_size=1, max_size=3)
CUTS = st.lists(st.integers(0, 400), max_size=4)


class Judged:
    """Diagnoses logs in memory, and asks of each answer that it holds together."""

    def __init__(self, folder: Path) -> None:
        self.catalogue: SignatureSet = load_signatures(Project(folder=CHECKOUT).fix_files())
        self.told: Counter[str] = Counter()
        self.slowest = 0.0
        self._file = folder / "train.log"

    def whole(self, logs: list[bytes], cuts: list[int]) -> None:
        """Read logs in pieces, judge them and tell of them."""
        begun = time.process_time()
        reads: list[LogEvents] = []
        for place, data in enumerate(logs):
            reader = LogReader(EventReader(self.catalogue, place, several=len(logs) > 1))
            edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
            for first, last in itertools.pairwise(edges):
                reader.feed(data[first:last])
            reads.append(reader.close())
        facts = [LogStats(name=str(place), lines=0, bytes=len(data)) for place, data in enumerate(logs)]
        found = diagnose_events(reads, facts, self.catalogue)
        self._holds(found, logs)
        spent = time.process_time() - begun
        self.slowest = max(self.slowest, spent)
        assert spent < MOST_S, f"took {spent:.1f} s of CPU"
        self.told[found.cause or found.ending] += 1

    def growing(self, logs: list[bytes], cuts: list[int]) -> None:
        """Follow a file that grows, is cut short, or taken away and made anew, between the pieces."""
        self._file.unlink(missing_ok=True)
        follower = GrowingLogs([LogSource(name="train.log", path=self._file)], self.catalogue)
        for data, cut in zip(logs, [*cuts, 0, 1, 2], strict=False):
            if cut % 5 == 0:
                self._file.unlink(missing_ok=True)
            elif cut % 5 == 1 and self._file.exists():
                os.truncate(self._file, 0)
            with self._file.open("ab") as file:
                file.write(data)
            follower.read()
            json.dumps(follower.diagnosis.as_json())
        self.told["followed"] += 1

    def _holds(self, found: Diagnosis, logs: list[bytes]) -> None:
        answer: dict[str, Any] = found.as_json()
        json.dumps(answer)
        format_report(found, why=True).encode("utf-8", "surrogatepass")
        assert answer["fatal"] == (answer["first_fatal"] is not None) == (answer["cause"] is not None)
        assert 0 <= answer["confidence"] <= 1
        assert all(-1 <= link["of"] < place for place, link in enumerate(answer["chain"]))
        if first := answer["first_fatal"]:
            lines = logs[int(first["file"])].count(b"\n") + 1
            assert 1 <= first["line"] <= lines, (first, lines)
            assert [link["class"] for link in answer["chain"]][:1] == ["root"]


def round_of(judged: Judged, number: int, cases: int) -> None:
    """Carry out one round of a campaign; raises what fell, with the least log that shows it."""
    how = settings(
        max_examples=cases,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )

    @seed(number)
    @how
    @given(LOGS, CUTS)
    def whole(logs: list[bytes], cuts: list[int]) -> None:
        judged.whole(logs, cuts)
        if cuts[:1] and cuts[0] % 16 == 0:
            judged.growing(logs, cuts)

    whole()


def campaign(cases: int, first: int, progress: Path | None = None, seconds: float = 1e9, begin: int = 0) -> int:
    """Carry out a campaign of rounds, whose seeds begin at `first`; return how many cases are done."""
    done, until = begin, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        judged = Judged(Path(folder))
        while done < cases and time.monotonic() < until:
            step = min(ROUND, cases - done)
            round_of(judged, first * 1_000_003 + done, step)
            done += step
            if progress:
                progress.parent.mkdir(parents=True, exist_ok=True)
                progress.write_text(json.dumps({"seed": first, "done": done}))
            known = sum(judged.told.values())
            sys.stdout.write(
                f"{done} logs of seed {first}: nothing fell; {len(judged.told)} answers of {known}; "
                f"slowest {judged.slowest:.2f} s of CPU\n"
            )
            sys.stdout.flush()
    return done


def main() -> int:
    """Carry out a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="case to begin with")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further round after this time")
    parser.add_argument("--progress", type=Path, help="file that says how far the campaign came")
    asked = parser.parse_args()
    done = asked.first
    if asked.progress and asked.progress.exists():
        facts = parse_json(asked.progress.read_bytes())
        done = max(done, facts["done"]) if facts["seed"] == asked.seed else done
    campaign(asked.cases, asked.seed, asked.progress, asked.seconds, done)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
