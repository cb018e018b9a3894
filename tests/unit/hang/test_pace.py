"""What a run's processes get of a machine, and the clock that goes as they do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlbox.hang.starvation import ProgressExtendedStartupLimit, StarvationScaledClock, find_slowness
from rlbox.system.counters import ActivityRates, ActivitySample, CpuUsage, ProcessUsage, compute_cpu_usage
from rlbox.system.limits import CpuLimit


def process(pid: int, cpu_s: float, waited_s: float) -> ProcessUsage:
    return ProcessUsage(
        pid=pid,
        started=pid,
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
    assert found.used_share_of_wanted == pytest.approx(share, abs=0.01)
    assert found.others_cores == pytest.approx((busy_s - after[0] + before[0]) / 10)


def test_its_own_threads_are_no_others() -> None:
    """Eight ranks on two cores wait for each other; the machine is theirs."""
    before, after = [[process(n, x, y) for n in range(8)] for x, y in ((0, 0), (2.5, 7.5))]
    found = compute_cpu_usage(look(0, 0, *before), look(10, 20, *after), 2.0)
    assert found.used_share_of_wanted == pytest.approx(1.0)
    assert found.others_cores == 0.0


def test_one_that_came_and_one_that_went() -> None:
    found = compute_cpu_usage(look(0, 0, process(1, 50, 50)), look(10, 20, process(2, 2, 2)), 2.0)
    assert (found.used_cores, found.wanted_cores) == (pytest.approx(0.2), pytest.approx(0.4))


def test_the_clock_goes_as_they_do() -> None:
    clock = StarvationScaledClock(100.0)
    clock.min_rate = 0.2
    assert clock.get_scaled_time_s(110) == 110
    clock.add_usage(CpuUsage(seconds=10, wanted_cores=1.0, used_cores=0.5, others_cores=1.5), 110)
    assert clock.get_scaled_time_s(120) == 115
    clock.add_usage(CpuUsage(seconds=10, wanted_cores=1.0, used_cores=0.01, others_cores=2.0), 120)
    assert clock.get_scaled_time_s(130) == 117  # never slower than it may
    clock.add_usage(CpuUsage(seconds=10, wanted_cores=0.0, used_cores=0.0, others_cores=2.0), 130)
    assert clock.get_scaled_time_s(140) == 127


def test_a_hang_that_began_slowly_is_none_of_the_machines() -> None:
    clock = StarvationScaledClock(0.0)
    for second in range(1, 11):
        hungry = CpuUsage(seconds=1, wanted_cores=1.0, used_cores=0.1, others_cores=1.9)
        clock.add_usage(
            hungry if second <= 4 else CpuUsage(seconds=1, wanted_cores=0.1, used_cores=0.02, others_cores=2.0), second
        )
    assert clock.find_slowness_since(0, 2) is None
    assert clock.get_scaled_time_s(11) > 6


def test_starved_over_a_time() -> None:
    clock = StarvationScaledClock(0.0)
    for second in range(1, 61):
        clock.add_usage(
            CpuUsage(seconds=1, wanted_cores=1.0, used_cores=1.0 if second <= 30 else 0.05, others_cores=1.9), second
        )
    assert clock.find_slowness_since(0, 2) is None
    found = clock.find_slowness_since(30, 2)
    assert found
    cause, text = found
    assert cause == "cores"
    assert text.startswith("this machine is busy: over 30 s the stage's processes got 5 % of ")
    assert text.endswith("others had 1.9 of 2 cores")
    assert clock.find_slowness_since(60, 2) is None


def limited(cpu_s: float, waited_s: float, throttled_s: float, *, cores: float = 0.2) -> CpuUsage:
    """Ten seconds of one process in a container with a limit."""
    first, second = look(0, 0, process(1, 0, 0)), look(10, cpu_s, process(1, cpu_s, waited_s))
    limits = [CpuLimit(cores=cores, throttled_s=given) for given in (5.0, 5.0 + throttled_s)]
    looks = [replace(one, cpu_limit=limit) for one, limit in zip((first, second), limits, strict=True)]
    return compute_cpu_usage(*looks, cores)


def test_the_limit_of_its_own_container_is_no_busy_machine() -> None:
    """It gets all that it may have, and a fifth of what it could use."""
    found = limited(2, 8, 8)
    assert (found.used_share_of_wanted, found.throttled_share_of_wanted, found.limit_cores) == (
        1.0,
        pytest.approx(0.8),
        0.2,
    )
    slow = find_slowness([found], 0.2)
    assert slow
    assert slow.cause == "limit"
    assert slow.description == (
        "the container's own CPU limit (0.2 cores: --cpus, or a pod's) held the stage's processes back 80 % of the "
        "time, over 10 s"
    )


def test_who_waits_beside_one_that_is_held_back_is_not() -> None:
    """A hang in a container whose other processes use up its limit is a hang."""
    found = limited(0.05, 0.1, 15)
    assert found.throttled_share_of_wanted == 0.0
    assert find_slowness([found], 0.2) is None


@pytest.mark.parametrize(("held", "starved", "by"), [(2, 1, "limit"), (1, 2, "cores")])
def test_now_one_thing_and_now_another(held: int, starved: int, by: str) -> None:
    """A container with a limit on a busy machine: neither keeps it back for most of the time, and both do always."""
    busy = CpuUsage(seconds=10, wanted_cores=1.0, used_cores=0.1, others_cores=1.9)
    rest = CpuUsage(seconds=10, wanted_cores=0.0, used_cores=0.0, others_cores=1.9)
    slow = find_slowness([*[limited(2, 8, 8)] * held, *[busy] * starved, rest], 2)
    assert slow
    assert slow.cause == by
    assert find_slowness([limited(2, 8, 8), busy, rest, rest], 2) is None


def test_a_limit_that_holds_nobody_back() -> None:
    assert limited(5, 0.1, 0.0, cores=4.0).throttled_share_of_wanted == 0.0
    assert limited(5, 0.1, 0.0, cores=4.0).limit_cores == 4.0


def reading(moved: int, state: str = "S", told_s: float | None = None) -> CpuUsage:
    """Ten seconds of one process that a disk moved so many bytes for."""
    before, now = process(1, 0, 0), replace(process(1, 0.5, 0.1), read_bytes=moved, state=state)
    first, second = look(0, 0, before), look(10, 1, now)
    return compute_cpu_usage(replace(first, disk_wait_s=told_s and 0.0), replace(second, disk_wait_s=told_s), 2.0)


@pytest.mark.parametrize(
    ("found", "share"),
    [
        (reading(10**8, "D"), 1.0),
        (reading(10**8, told_s=9.0), 0.9),  # its threads wait
        (reading(10**8, told_s=1.0), 0.1),
        (reading(10**8), 0.0),
        (reading(0, told_s=9.0), 0.0),  # somebody else waits
    ],
)
def test_who_waits_for_a_disk(found: CpuUsage, share: float) -> None:
    assert found.disk_wait_share == pytest.approx(share)


def test_a_busy_disk_has_its_name_and_a_dead_mount_has_not() -> None:
    slow = find_slowness([reading(10**8, "D")], 2)
    assert slow
    assert slow.description == (
        "this machine's disk is busy or slow: over 10 s the stage's processes waited for it 100 % of the time, and it "
        "moved 10.0 MB/s for them"
    )
    assert find_slowness([reading(0, "D")], 2) is None


def test_a_start_that_gets_on_has_more_time() -> None:
    clock = ProgressExtendedStartupLimit(30, 10, 0, 0)
    for second in range(1, 320):
        clock.add_activity_rates(ActivityRates(seconds=1, read=2e6 if second < 200 else 0.0), second)
        assert clock.must_stop(second, second) == (second > 203)  # what was seen of it is five seconds old
    assert clock.get_wall_elapsed_s(320) == 320


def test_a_start_that_sleeps_for_a_disk_is_seen_to_get_on_for_longer() -> None:
    """Megabytes are asked for at once; a disk that gives none for half a minute is gone."""
    clock = ProgressExtendedStartupLimit(10, 10, 0, 0)
    clock.add_activity_rates(ActivityRates(seconds=1, read=4e6), 9)
    for second in range(10, 60):
        clock.add_activity_rates(ActivityRates(seconds=1), second, is_waiting_for_disk=True)
        assert clock.must_stop(second, second) == (second >= 39)


def test_no_start_lasts_for_ever() -> None:
    clock = ProgressExtendedStartupLimit(30, 10, 0, 0)
    clock.add_activity_rates(ActivityRates(seconds=1, memory=5e6), 299)
    assert not clock.must_stop(299, 299)
    clock.add_activity_rates(ActivityRates(seconds=1, memory=5e6), 301)
    assert clock.must_stop(301, 301)


def test_a_start_that_only_computes_has_twice_its_time() -> None:
    """A server that polls for ever looks like one that compiles."""
    clock = ProgressExtendedStartupLimit(30, 10, 0, 0)
    for second, late in ((31, False), (59, False), (61, True)):
        clock.add_activity_rates(ActivityRates(seconds=1, cpu=1.0), second)
        assert clock.must_stop(second, second) == late


def test_a_start_that_waits_is_late_in_its_time() -> None:
    clock = ProgressExtendedStartupLimit(30, 10, 0, 0)
    for second in range(1, 40):
        clock.add_activity_rates(ActivityRates(seconds=1, cpu=0.03, read=3000.0), second)
        assert clock.must_stop(second, second) == (second > 30)


def test_the_time_of_a_start_is_that_of_its_processes() -> None:
    """Others have the machine: 100 s on the wall were 20 s for it."""
    clock = ProgressExtendedStartupLimit(30, 10, 0, 0)
    assert not clock.must_stop(20, 100)
    assert ProgressExtendedStartupLimit(30, 1, 0, 0).must_stop(31, 31)
