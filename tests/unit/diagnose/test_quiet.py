"""A large log is looked through on all cores: nothing that a diagnosis says depends on it."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rlbox.diagnose.act import quiet
from rlbox.diagnose.act.catalogue import load_catalogue
from rlbox.diagnose.act.diagnose import diagnose
from rlbox.diagnose.act.read import LogReader
from rlbox.machine.act import command
from rlbox.spec.project import PACKAGE, Project

CATALOGUE = load_catalogue(Project(folder=PACKAGE.parent).fix_files())
QUIET = "(Worker pid=7) step {0}: loss 0.{0}, reward 0.5, 31 tokens/s"
LOUD = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    'Traceback (most recent call last):\n  File "a.py", line 3, in step\n    run()\nRuntimeError: no such thing',
    "ERROR 01-02 03:04:05 retrying",
    "WARNING: harmless",
    "OOM",
)
OWN = os.getpid()
pytestmark = pytest.mark.allow("processes")


def killed(piece: object) -> object:
    """What a process does that somebody kills."""
    if os.getpid() != OWN:
        os.kill(os.getpid(), signal.SIGKILL)
    return piece


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Make pieces and blocks so small that a log of some kB has many."""

    def small(piece: int, block: int) -> None:
        monkeypatch.setattr(quiet, "usable_cores", lambda: 2.0)
        monkeypatch.setattr("rlbox.machine.act.limits.usable_cores", lambda: 2.0)
        monkeypatch.setattr(quiet, "LEAST", 1)
        monkeypatch.setattr(quiet, "_PIECE", piece)
        monkeypatch.setattr(quiet, "BEGINNING", block)
        monkeypatch.setattr("rlbox.diagnose.act.sources.BLOCK", block)

    return small


def said(log: Path) -> dict[str, object]:
    return diagnose([log], CATALOGUE).as_json()


def passed(log: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many bytes were passed over."""
    counted = []
    monkeypatch.setattr(LogReader, "pass_over", _counting(LogReader.pass_over, counted))
    said(log)
    monkeypatch.undo()
    return sum(counted)


def _counting(real: Callable[..., None], counted: list[int]) -> Callable[..., None]:
    def count(reader: LogReader, size: int, lines: int) -> None:
        counted.append(size)
        real(reader, size, lines)

    return count


def written(chance: random.Random, lines: int, loud: float) -> bytes:
    """Return a log: short and long lines, some that say something, with or without a line feed at its end."""
    rows = []
    for number in range(lines):
        if chance.random() < loud:
            rows.append(chance.choice(LOUD))
        else:
            rows.append(QUIET.format(number) + "x" * chance.choice((0, 0, 0, 3, 700)))
    end = chance.choice(("\n", "", "\r\n", "\n\n"))
    return (chance.choice(("\n", "\n", "\r\n")).join(rows) + end).encode()


@pytest.mark.parametrize("seed", range(12))
def test_the_answer_is_that_of_a_reader_who_passes_nothing(
    seed: int, tmp_path: Path, cuts: Callable[[int, int], None]
) -> None:
    chance = random.Random(seed)
    log = tmp_path / "train.log"
    log.write_bytes(written(chance, chance.randrange(1, 900), chance.choice((0, 0, 0.001, 0.005, 0.05))))
    whole = said(log)
    cuts(chance.choice((300, 4096, 9000)), chance.choice((128, 512, 4096)))
    assert said(log) == whole


@pytest.mark.parametrize("data", [b"", b"\n", b"x", b"x" * 9000, b"x" * 9000 + b"\nOOM\n", b"\n" * 3000, b"a\nOOM"])
def test_odd_logs(data: bytes, tmp_path: Path, cuts: Callable[[int, int], None]) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(data)
    whole = said(log)
    cuts(700, 128)
    assert said(log) == whole


def test_most_of_a_healthy_log_is_passed_over(
    tmp_path: Path, cuts: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"{QUIET.format(number)}\n" for number in range(5000)))
    cuts(20_000, 4096)
    assert passed(log, monkeypatch) > 0.9 * log.stat().st_size


def test_what_follows_the_first_find_is_read(
    tmp_path: Path, cuts: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"{QUIET.format(number)}\n" for number in range(5000)]
    rows[2500] = f"{LOUD[0]}\n"
    log = tmp_path / "train.log"
    log.write_text("".join(rows))
    cuts(20_000, 4096)
    size = log.stat().st_size
    assert 0.4 * size < passed(log, monkeypatch) < 0.5 * size


def test_a_core_that_is_taken_away_costs_time_alone(
    tmp_path: Path, cuts: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed, one that cannot be started, a machine without semaphores."""
    log = tmp_path / "train.log"
    log.write_text("".join(f"{QUIET.format(number)}\n" for number in range(5000)) + LOUD[0])
    whole = said(log)
    cuts(20_000, 4096)
    with monkeypatch.context() as patched:
        patched.setattr(command, "_carry_out", killed)
        assert said(log) == whole
    for error in (BlockingIOError(11, "no process"), ImportError("no semaphores"), FileNotFoundError(2, "/dev/shm")):

        def refuse(*words: object, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr("concurrent.futures.ProcessPoolExecutor", refuse)
            assert said(log) == whole
