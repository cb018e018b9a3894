"""The score of the open half of the fault lab: what it must not fall below."""

from __future__ import annotations

import sys

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.diagnose.diagnose import diagnose_events
from rlbox.diagnose.diagnosis import LogStats
from rlbox.diagnose.event_reader import EventReader, LogReader
from rlbox.diagnose.signatures import load_signatures

ALWAYS = ("fatal", "quiet", "unknown kept", "node", "answer no victim")
LEAST = {"cause": 0.95, "line": 0.94, "rank": 0.85, "victims linked": 0.95, **dict.fromkeys(ALWAYS, 1.0)}
"""Shares of right answers."""
ORDERS = 3
CATALOGUE = load_signatures(Project(folder=CHECKOUT).fix_files())
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/data/job/train.py", line 3, in <module>',
    "    torch.save(model, path)",
    "OSError: [Errno 28] No space left on device: '/data/out/step_3.pt'",
)


def test_the_open_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(CHECKOUT / "tests/faultlab"), *sys.path])
    import score

    good, asked, wrong = score.table("open", score.shipped_judge)
    assert asked["fatal"] > 190
    assert asked["answer no victim"] >= 20
    low = {key: f"{good[key]} of {asked[key]}" for key, least in LEAST.items() if good[key] < least * asked[key]}
    assert low == {}, wrong


def test_no_order_of_two_nodes_changes_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of `python tests/faultlab/interleavings.py`, which goes through 200 orders of each fault."""
    monkeypatch.setattr(sys, "path", [str(CHECKOUT / "tests/faultlab"), *sys.path])
    import interleavings

    runs = list(interleavings.runs_of_two_nodes())
    assert len(runs) == 16
    for one, files in runs:
        told = interleavings.told_of(one, files, ORDERS)
        assert told.others == {}, (one.recipe.name, one.env)
        assert told.same_words == told.asked, (one.recipe.name, one.env)
        assert told.root.node == one.recipe.node


def test_steps_of_the_other_ranks_do_not_acquit_the_one_that_fell() -> None:
    """Its traceback calls it `rank4`, its steps `rank 4`."""
    steps = "".join(f"gpu-b  | [default{n}]:[rank {n}] INFO step {step} done\n" for step in (1, 2, 3) for n in (0, 1))
    fell = "".join(f"gpu-b  | [default0]:[rank0]: {line}\n" for line in TRACEBACK)
    behind = "".join(f"gpu-b  | [default1]:[rank 1] INFO step {step} done\n" for step in (4, 5, 6))
    reader = EventReader(CATALOGUE)
    reading = LogReader(reader)
    reading.feed((steps + fell + behind).encode())
    found = diagnose_events([reading.close()], [LogStats(name="a.log", lines=reading.lines)], CATALOGUE)
    assert (found.cause_id, found.location.rank) == ("disk-full", 0)
