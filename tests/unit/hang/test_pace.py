"""What a run's processes get of a machine, and the clock that goes as they do."""

from __future__ import annotations

import pytest

from rlbox.hang.pace import PaceClock
from rlbox.machine.counters import Activity, Pace, ProcessActivity, pace_between


def process(pid: int, cpu_s: float, waited_s: float) -> ProcessActivity:
    return ProcessActivity(
        pid=pid,
        started=pid,
        name="python",
        state="R",
        cpu_s=cpu_s,
        resident_bytes=0,
        minor_faults=0,
        major_faults=0,
        waited_s=waited_s,
    )


def look(t_s: float, busy_s: float, *processes: ProcessActivity) -> Activity:
    return Activity(t_s=t_s, received_bytes=0, sent_bytes=0, local_bytes=0, gpus=(), processes=processes, busy_s=busy_s)


def pace(before: tuple[float, float], after: tuple[float, float], busy_s: float, cores: float = 2.0) -> Pace:
    """Of one process, from (CPU, waited) to (CPU, waited) in 10 s."""
    return pace_between(look(0, 0, process(1, *before)), look(10, busy_s, process(1, *after)), cores)


def test_a_quiet_machine_is_no_reason() -> None:
    assert pace((1, 0), (11, 0.01), busy_s=11).share == pytest.approx(1.0, abs=0.01)


def test_who_wants_a_core_and_gets_a_tenth() -> None:
    found = pace((0, 0), (1, 9), busy_s=20)
    assert found.share == pytest.approx(0.1)
    assert found.others == pytest.approx(1.9)


def test_who_waits_for_something_else_has_all_it_wants() -> None:
    """A hang on a busy machine is one: a process in a lock, or in an answer that does not come, wants no core."""
    assert pace((5, 3), (5.05, 3.1), busy_s=20).share == 1.0


def test_its_own_threads_are_no_others() -> None:
    """Eight ranks on two cores wait for each other; the machine is theirs."""
    before, after = [[process(n, x, y) for n in range(8)] for x, y in ((0, 0), (2.5, 7.5))]
    found = pace_between(look(0, 0, *before), look(10, 20, *after), 2.0)
    assert found.share == pytest.approx(1.0)
    assert found.others == 0.0


def test_one_that_came_and_one_that_went() -> None:
    found = pace_between(look(0, 0, process(1, 50, 50)), look(10, 20, process(2, 2, 2)), 2.0)
    assert (found.got, found.wanted) == (pytest.approx(0.2), pytest.approx(0.4))


def test_the_clock_goes_as_they_do() -> None:
    clock = PaceClock(100.0)
    clock.slowest = 0.2
    assert clock.now_s(110) == 110
    clock.take(Pace(seconds=10, wanted=1.0, got=0.5, others=1.5), 110)
    assert clock.now_s(120) == 115
    clock.take(Pace(seconds=10, wanted=1.0, got=0.01, others=2.0), 120)
    assert clock.now_s(130) == 117  # never slower than it may
    clock.take(Pace(seconds=10, wanted=0.0, got=0.0, others=2.0), 130)
    assert clock.now_s(140) == 127


def test_a_hang_that_began_slowly_is_none_of_the_machines() -> None:
    clock = PaceClock(0.0)
    for second in range(1, 11):
        hungry = Pace(seconds=1, wanted=1.0, got=0.1, others=1.9)
        clock.take(hungry if second <= 4 else Pace(seconds=1, wanted=0.1, got=0.02, others=2.0), second)
    assert clock.starved(0) is None
    assert clock.now_s(11) > 6


def test_starved_over_a_time() -> None:
    clock = PaceClock(0.0)
    for second in range(1, 61):
        clock.take(Pace(seconds=1, wanted=1.0, got=1.0 if second <= 30 else 0.05, others=1.9), second)
    assert clock.starved(0) is None
    found = clock.starved(30)
    assert found
    assert (round(found.share, 2), found.seconds) == (0.05, 30)
    text = found.text(2, ["burn (pid 7) 1.5"])
    assert text.startswith("this machine is busy: over 30 s the stage's processes got 5 % of ")
    assert text.endswith("others had 1.9 of 2 cores: burn (pid 7) 1.5")
    assert clock.starved(60) is None
