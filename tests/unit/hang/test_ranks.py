"""Ranks that wait for each other, told from what two H200s, their driver and NCCL 2.28.9 showed of each case."""

from __future__ import annotations

import pytest
from fakes import h200, load_cases

from rlbox.hang.nccl import UNNAMED_OPERATION, UnhealthyCommunicator, parse_ras_report
from rlbox.hang.ranks import (
    LIMIT_S,
    DeadlockTracker,
    RankActivity,
    RankSample,
    RankStatus,
    classify_rank_activity,
    find_suspected_deadlock,
    stacks_confirm_deadlock,
)
from rlbox.hang.waits import PythonFrame
from rlbox.system.counters import ActivityRates
from rlbox.system.gpu import GpuStatus

CASES = load_cases("hang", "test_ranks")
HEAD = CASES["HEAD"]
BEHIND = CASES["BEHIND"]
DIFFERENT = CASES["DIFFERENT"]
KILLED = CASES["KILLED"]
MANY = CASES["MANY"]
THREE_AHEAD = CASES["THREE_AHEAD"]
THREE_DIFFERENT = CASES["THREE_DIFFERENT"]
GROUPS = CASES["GROUPS"]
WELL = "Warnings\n========\n\n"


@pytest.mark.parametrize(
    ("rates", "gpus", "doing"),
    [
        pytest.param(ActivityRates(seconds=1, cpu=1.0), [h200(121, (578, 100, 0))], "spins", id="in a collective"),
        pytest.param(ActivityRates(seconds=1, cpu=1.0), [h200(119, (578, 0, 0))], "unclear", id="Python, GPU idle"),
        pytest.param(ActivityRates(seconds=1, cpu=1.0), [h200(628, (578, 100, 25))], "works", id="long kernels"),
        pytest.param(ActivityRates(seconds=1, cpu=1.0), [h200(400, (578, 100, 1))], "works", id="kernels in registers"),
        pytest.param(
            ActivityRates(seconds=1, cpu=1.0), [h200(520, (578, 48, 5), (9, 52, 6))], "unclear", id="beside a stranger"
        ),
        pytest.param(
            ActivityRates(seconds=1, cpu=0.0), [h200(628, (578, 100, 25))], "works", id="sleeps until its GPU is done"
        ),
        pytest.param(
            ActivityRates(seconds=1, cpu=0.0), [h200(121, (578, 100, 0))], "idle", id="a collective without spinning"
        ),
        pytest.param(ActivityRates(seconds=1, cpu=0.0), [h200(692, (9, 100, 22))], "idle", id="a stranger's kernels"),
        pytest.param(ActivityRates(seconds=1, cpu=1.0, read=1e6), [h200(121, (578, 100, 0))], "works", id="reads"),
        pytest.param(
            ActivityRates(seconds=1, cpu=5.0), [h200(121, (578, 100, 0))], "unclear", id="computes on five cores"
        ),
        pytest.param(ActivityRates(seconds=1, cpu=1.0), [], "unclear", id="no driver"),
    ],
)
def test_what_one_rank_does(rates: ActivityRates, gpus: list[GpuStatus], doing: str) -> None:
    assert classify_rank_activity(rates, 578, gpus) == doing


def look(text: str, *doing: str, **more: object) -> RankSample:
    ranks = tuple(RankStatus(pid=578 + i, rank=i, activity=what) for i, what in enumerate(doing))  # type: ignore[arg-type]
    return RankSample(ranks=ranks, unhealthy_communicators=parse_ras_report(HEAD + text), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "odd", "what"),
    [
        pytest.param(
            look(BEHIND, "spins", "idle"), {579}, "rank 0 waits in AllReduce 12, not called by rank 1", id="asleep"
        ),
        pytest.param(
            look(DIFFERENT, "spins", "spins"),
            {578, 579},
            "ranks call different collectives: rank 1 Broadcast 1, rank 0 AllReduce 12",
            id="mismatched",
        ),
        pytest.param(
            look(THREE_AHEAD, "spins", "spins", "spins", "idle"),
            {581},
            "ranks 0, 1, 2 wait in AllReduce 12, not called by rank 3",
            id="one of four asleep",
        ),
        pytest.param(
            look(THREE_DIFFERENT, "spins", "spins", "spins", "spins"),
            {578},
            "ranks call different collectives: ranks 1, 2, 3 Broadcast 1, rank 0 AllReduce 12",
            id="one of four mismatched",
        ),
        pytest.param(
            look(GROUPS, "spins", "unclear"),
            {578, 579},
            "ranks call different collectives: rank 1 AllReduce 2 of communicator 079067d5369e1eda, "
            "rank 0 AllReduce 2 of communicator 294f834ef0e6088d",
            id="groups in opposite order",
        ),
        pytest.param(
            look(WELL, "unclear", "unclear", is_whole_world=True),
            set(),
            "ranks 0, 1 wait for each other in collectives",
            id="groups in opposite order, not connected yet",
        ),
        pytest.param(
            look(KILLED, "spins"),
            set(),
            "rank 1 ended, or does not answer NCCL; rank 0 waits for it in a collective",
            id="killed",
        ),
        pytest.param(
            look(MANY, "idle", "idle", "spins", "spins"),
            {578, 579},
            "the others wait in collective 6650, not called by ranks 0, 1",
            id="many ranks, NCCL 2.24",
        ),
        pytest.param(
            look(WELL, "spins", "spins"), set(), "ranks 0, 1 wait in a collective, each in another one", id="order"
        ),
        pytest.param(
            look("", "spins", "idle"), {579}, "rank 0 waits in a collective, not called by rank 1", id="without RAS"
        ),
        pytest.param(
            look("", "idle", "idle", missing_ranks=(2,)),
            set(),
            "rank 2 of 3 never started, or ended; ranks 0, 1 wait for it",
            id="absent",
        ),
    ],
)
def test_how_they_wait(seen: RankSample, odd: set[int], what: str) -> None:
    found = find_suspected_deadlock(seen)
    assert found
    assert (found.absent_pids, found.description) == (frozenset(odd), what)


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(look(BEHIND, "spins", "works"), id="rank 1 evaluates"),
        pytest.param(look(BEHIND, "spins", "idle", has_working_non_rank_process=True), id="a worker loads data"),
        pytest.param(look(WELL, "idle", "idle"), id="all are idle: the rule of steps"),
        pytest.param(look("", "idle", "works", missing_ranks=(2,)), id="one still starts"),
        pytest.param(look(WELL, "unclear", "unclear"), id="others may be on other machines"),
        pytest.param(look("", missing_ranks=(1,)), id="no rank is left"),
        pytest.param(look(BEHIND.replace("process 579", "process 99"), "spins", "idle"), id="of another machine"),
        pytest.param(look("", "spins", "spins", has_remote_ranks=True), id="they may wait for one of another machine"),
    ],
)
def test_who_works_waits_for_nobody(seen: RankSample) -> None:
    assert find_suspected_deadlock(seen) is None


def test_time_counts_while_they_wait_in_the_same_way() -> None:
    judge = DeadlockTracker()
    for second in range(0, 12, 2):
        judge.add_sample(look(BEHIND, "spins", "idle"), second)
    assert judge.get_duration_s(12) == 12
    judge.add_sample(look(BEHIND.replace("12", "13"), "spins", "idle"), 14)
    assert judge.get_duration_s(14) == 0
    judge.add_sample(look(BEHIND, "spins", "works"), 16)
    assert judge.get_duration_s(40) == 0 < LIMIT_S


@pytest.mark.parametrize(
    "less",
    [
        pytest.param(look("", "spins", "idle"), id="NCCL does not answer"),
        pytest.param(look(KILLED, "spins", "idle"), id="one rank does not answer NCCL"),
        pytest.param(look("", "spins", "spins"), id="who is idle is not seen"),
    ],
)
@pytest.mark.parametrize("at", [0, 4, 10])
def test_time_goes_on_while_less_is_known(less: RankSample, at: int) -> None:
    judge = DeadlockTracker()
    for second in range(0, 12, 2):
        judge.add_sample(less if second == at else look(BEHIND, "spins", "idle"), second)
    assert judge.get_duration_s(12) == 12
    judge.add_sample(look(BEHIND, "spins", "idle"), 12)
    judge.add_sample(look("", "spins", "idle"), 14)
    assert judge.get_duration_s(14) == 14
    assert judge.deadlock
    assert judge.deadlock.description == "rank 0 waits in AllReduce 12, not called by rank 1"


@pytest.mark.parametrize("text", ["", "\0", "#0-0 (ab) MISMATCH", "  Rank 1 has launched up to", "#0-0 (a) X\n" * 1000])
def test_any_answer_is_read(text: str) -> None:
    assert all(isinstance(one, UnhealthyCommunicator) for one in parse_ras_report(text))


def test_counts_of_old_versions() -> None:
    (found,) = parse_ras_report(MANY)
    assert found.highest_launch_counts == {UNNAMED_OPERATION: 6650}
    assert found.missed_call_by_rank == dict.fromkeys((0, 1), (UNNAMED_OPERATION, 6650, found.name))


SYNCHRONIZE = PythonFrame(
    function="synchronize", file="/site-packages/torch/cuda/__init__.py", line=1162, is_library=True
)
RECV = PythonFrame(
    function="irecv", file="/site-packages/torch/distributed/distributed_c10d.py", line=2597, is_library=True
)
SCORE = PythonFrame(function="score", file="/work/evaluate.py", line=12)


@pytest.mark.parametrize(
    ("text", "activities", "frames", "is_shown"),
    [
        pytest.param(BEHIND, ("spins", "unclear"), (SYNCHRONIZE, RECV), True, id="receives while it connects"),
        pytest.param(BEHIND, ("spins", "unclear"), (SYNCHRONIZE, SCORE), False, id="evaluates in Python"),
        pytest.param(BEHIND, ("unclear", "idle"), (SYNCHRONIZE, SCORE), True, id="beside a stranger, asleep"),
        pytest.param(
            THREE_AHEAD,
            ("unclear", "unclear", "unclear", "idle"),
            (SYNCHRONIZE, SYNCHRONIZE, SYNCHRONIZE, SCORE),
            True,
            id="beside a stranger, one of four asleep",
        ),
        pytest.param(BEHIND, ("spins", "unclear"), (RECV, SYNCHRONIZE), False, id="waits for its own kernels"),
        pytest.param(BEHIND, ("spins", "unclear"), (SYNCHRONIZE, None), False, id="no stack"),
        pytest.param(KILLED, ("unclear",), (SYNCHRONIZE,), True, id="beside a stranger, the other is gone"),
        pytest.param(KILLED, ("unclear",), (SCORE,), False, id="evaluates after the other is gone"),
    ],
)
def test_a_stack_tells_whether_an_unclear_rank_waits(
    text: str, activities: tuple[RankActivity, ...], frames: tuple[PythonFrame | None, ...], is_shown: bool
) -> None:
    found = find_suspected_deadlock(look(text, *activities))
    assert found
    stacks = {578 + rank: (frame,) for rank, frame in enumerate(frames) if frame}
    assert stacks_confirm_deadlock(found, stacks) is is_shown
