"""What a run's processes get of the cores of a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlbox.system.counters import ActivitySample, CpuUsage, ProcessUsage, compute_cpu_usage
from rlbox.system.limits import CgroupCpu


def process(pid: int, cpu_s: float, waited_s: float) -> ProcessUsage:
    return ProcessUsage(
        pid=pid,
        start_ticks=pid,
        name="python",
        state="R",
        cpu_s=cpu_s,
        resident_bytes=0,
        minor_faults=0,
        major_faults=0,
        main_thread_run_delay_s=waited_s,
    )


def look(t_s: float, busy_s: float, *processes: ProcessUsage) -> ActivitySample:
    return ActivitySample(
        time_s=t_s,
        received_bytes=0,
        sent_bytes=0,
        loopback_bytes=0,
        gpus=(),
        processes=processes,
        machine_busy_s=busy_s,
    )


def pace(before: tuple[float, float], after: tuple[float, float], busy_s: float, cores: float = 2.0) -> CpuUsage:
    """Of one process, from (CPU, waited) to (CPU, waited) in 10 s."""
    return compute_cpu_usage(look(0, 0, process(1, *before)), look(10, busy_s, process(1, *after)), cores)


@pytest.mark.parametrize(
    ("before", "after", "busy_s", "share"),
    [
        ((1, 0), (11, 0.01), 11, 1.0),
        ((0, 0), (1, 9), 20, 0.1),
        ((5, 3), (5.05, 3.1), 20, 1.0),  # a process in a lock wants no core: a hang on a busy machine is one
    ],
)
def test_the_share_of_what_they_wanted(
    before: tuple[float, float], after: tuple[float, float], busy_s: float, share: float
) -> None:
    found = pace(before, after, busy_s)
    assert found.used_share_of_wanted_or_1 == pytest.approx(share, abs=0.01)
    assert found.others_cores == pytest.approx((busy_s - after[0] + before[0]) / 10)


def test_its_own_threads_are_no_others() -> None:
    """Eight ranks on two cores wait for each other; the machine is theirs."""
    before, after = [[process(n, x, y) for n in range(8)] for x, y in ((0, 0), (2.5, 7.5))]
    found = compute_cpu_usage(look(0, 0, *before), look(10, 20, *after), 2.0)
    assert found.used_share_of_wanted_or_1 == pytest.approx(1.0)
    assert found.others_cores == 0.0


def test_one_that_came_and_one_that_went() -> None:
    found = compute_cpu_usage(look(0, 0, process(1, 50, 50)), look(10, 20, process(2, 2, 2)), 2.0)
    assert (found.used_cores, found.wanted_cores) == (pytest.approx(0.2), pytest.approx(0.4))


def limited(cpu_s: float, waited_s: float, throttled_s: float, *, cores: float = 0.2) -> CpuUsage:
    """Ten seconds of one process in a container with a limit."""
    first, second = look(0, 0, process(1, 0, 0)), look(10, cpu_s, process(1, cpu_s, waited_s))
    limits = [CgroupCpu(cores=cores, throttled_s=given) for given in (5.0, 5.0 + throttled_s)]
    looks = [replace(one, cpu_limit=limit) for one, limit in zip((first, second), limits, strict=True)]
    return compute_cpu_usage(*looks, cores)


def test_the_limit_of_its_own_container_is_no_busy_machine() -> None:
    """It gets all that it may have, and a fifth of what it could use."""
    found = limited(2, 8, 8)
    assert (found.used_share_of_wanted_or_1, found.throttled_share_of_used_and_throttled, found.limit_cores) == (
        1.0,
        pytest.approx(0.8),
        0.2,
    )


def test_who_waits_beside_one_that_is_held_back_is_not() -> None:
    """A hang in a container whose other processes use up its limit is a hang."""
    found = limited(0.05, 0.1, 15)
    assert found.throttled_share_of_used_and_throttled == 0.0


def test_a_limit_that_holds_nobody_back() -> None:
    assert limited(5, 0.1, 0.0, cores=4.0).throttled_share_of_used_and_throttled == 0.0
    assert limited(5, 0.1, 0.0, cores=4.0).limit_cores == 4.0
