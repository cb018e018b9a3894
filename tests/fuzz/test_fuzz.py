"""A sample of the campaigns of `make nightly ARGS=fuzz`, and logs as no program should write them."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator

import pytest
from fakes import CHECKOUT
from fuzz import command_lines
from fuzz.campaign import campaign
from fuzz.diagnosing import Judged, round_of

from rlbox.cli.root import COMMANDS
from rlbox.config.project import Project
from rlbox.diagnose.diagnosis import Diagnosis, LogStats, diagnose_events
from rlbox.diagnose.event_reader import EventReader, LogReader
from rlbox.diagnose.signatures import load_signatures

CASES, LINES, LOGS = 20_000, 250, 400
CATALOGUE = load_signatures(Project(folder=CHECKOUT).own_pack_and_shipped_fix_files())
PROCESSES = 100_000
MOST_BYTES = 200e6
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
FRAME = '  File "/opt/venv/lib/python3.11/site-packages/torch/nn.py", line 3, in forward'


def test_records_and_lines_break_no_reader() -> None:
    fell, told, slowest = campaign(CASES, seed=7)
    assert fell == []
    assert told.total() == CASES
    assert slowest < 1


def test_command_lines_break_no_command() -> None:
    fell, told = command_lines.campaign(LINES, seed=7)
    assert fell == []
    assert set(COMMANDS) <= set(told)


def test_logs_break_no_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.diagnosing.MOST_S", 30.0)  # on a machine that others use
    judged = Judged()
    round_of(judged, 7, LOGS)
    assert judged.told.total() >= LOGS
    assert judged.told["unknown"] > 20
    assert len(judged.told) > 6


def found_in(blocks: Iterable[bytes]) -> Diagnosis:
    """Return the diagnosis of a log that comes in blocks."""
    reader = LogReader(EventReader(CATALOGUE))
    for block in blocks:
        reader.feed(block)
    read = reader.close()
    return diagnose_events([read], [LogStats(name="a.log", lines=read.line_count)], CATALOGUE)


def each(*lines: str) -> Iterator[bytes]:
    """Yield each line as all processes say it, one process after the other, in blocks."""
    for line in lines:
        for begin in range(0, PROCESSES, 1000):
            yield "".join(f"(Worker pid={pid}) {line}\n" for pid in range(begin, begin + 1000)).encode()


def peak() -> float:
    """Return the most bytes of memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_as_many_processes_that_work_on() -> None:
    found = found_in([*each("step:1 - loss:0.5"), f"(Worker pid=7) {OOM}\n".encode()])
    assert found.cause_id_unknown_or_none == "gpu-oom-training"
    assert found.root is not None
    assert (found.root.line_number, found.root.event.writer) == (PROCESSES + 1, "Worker pid=7")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "number"),
    [((OOM,), 1), (("Traceback (most recent call last):", FRAME, OOM), 2 * PROCESSES + 1)],
    ids=["a line each", "tracebacks that are all open at once"],
)
def test_as_many_processes_that_fall(lines: tuple[str, ...], number: int) -> None:
    before = peak()
    found = found_in(each(*lines))
    assert found.cause_id_unknown_or_none == "gpu-oom-training"
    assert found.root is not None
    assert found.root.line_number >= number
    assert peak() - before < MOST_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("piece", [b"ERROR x ", b"\r", b"\x00", b"\x1b[31m", b"ValueError: y "])
def test_a_line_of_a_gigabyte(piece: bytes) -> None:
    before = peak()
    block = piece * ((1 << 20) // len(piece))
    reader = LogReader(EventReader(CATALOGUE))
    for _ in range((1 << 30) // len(block)):
        reader.feed(block)
    reader.feed(f"\n{OOM}\n".encode())
    found = diagnose_events([reader.close()], [LogStats(name="a.log", lines=reader.lines)], CATALOGUE)
    assert reader.lines == 2
    assert found.has_fatal_failure
    assert peak() - before < MOST_BYTES


def test_clocks_that_run_back() -> None:
    lines = [f"2026-01-02 03:{59 - minute:02}:00,000 INFO step:{minute} - loss:0.5" for minute in range(60)]
    found = found_in(["\n".join([*lines, f"2020-01-01 00:00:00,000 ERROR {OOM}", ""]).encode()])
    assert (found.cause_id_unknown_or_none, found.root.line_number if found.root else 0) == ("gpu-oom-training", 61)
