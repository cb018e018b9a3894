"""Logs of hostile making through `rlbox diagnose`: no traceback, an answer that holds together, all within a second.

`python tests/fuzz/diagnosing.py --cases N --seed S [--seconds T]`: Hypothesis makes the logs, in rounds whose seeds
follow from S. What it shows is the least log that it could find.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from rlbox.config.project import Project
from rlbox.config.toml_files import load_toml
from rlbox.diagnose.diagnosis import Diagnosis, LogStats, diagnose_events
from rlbox.diagnose.event_reader import EventReader, LogEvents, LogReader
from rlbox.diagnose.report import format_report
from rlbox.diagnose.signatures import SignatureSet, load_signatures

ROUND = 500
MOST_S = 1.0
CHECKOUT = Path(__file__).resolve().parents[2]
TEXTS = load_toml(Path(__file__).with_name("words.toml"))["logs"]
BEFORE, SAID = TEXTS["before"], TEXTS["said"]
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

    def __init__(self) -> None:
        self.catalogue: SignatureSet = load_signatures(Project(folder=CHECKOUT).own_pack_and_shipped_fix_files())
        self.told: Counter[str] = Counter()
        self.slowest = 0.0

    def whole(self, logs: list[bytes], cuts: list[int]) -> None:
        """Read logs in pieces, judge them and tell of them."""
        begun = time.process_time()
        reads: list[LogEvents] = []
        for place, data in enumerate(logs):
            reader = LogReader(EventReader(self.catalogue, place))
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
        self.told[found.cause_id_unknown_or_none or found.ending] += 1

    def _holds(self, found: Diagnosis, logs: list[bytes]) -> None:
        answer: dict[str, Any] = found.as_json()
        json.dumps(answer)
        format_report(found, include_benign=True).encode("utf-8", "surrogatepass")
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

    whole()


def main() -> int:
    """Carry out a campaign of rounds from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further round after this time")
    asked = parser.parse_args()
    until = time.monotonic() + asked.seconds
    judged = Judged()
    for first in range(0, asked.cases, ROUND):
        if time.monotonic() > until:
            break
        round_of(judged, asked.seed * 1_000_003 + first, ROUND)
        print(f"{first + ROUND} logs: nothing fell; slowest {judged.slowest:.2f} s of CPU", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
