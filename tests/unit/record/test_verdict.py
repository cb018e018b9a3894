"""Whether a run ended as its own record says: held against its supervisor's words, the engine's, and what was kept."""

from __future__ import annotations

import dataclasses

import pytest

from rlbox.record.host_record import (
    ATTEMPT_BEGUN_LINE,
    RunOutcome,
    extract_status_and_passed_stages,
    format_stage_passed_line,
    mark_failed_if_container_contradicts,
    mark_failed_if_outcome_differs,
)
from rlbox.record.state import RunState, StageState, StageStatus, find_run_cause
from rlbox.record.supervisor_exit import ExitKind, SupervisorExit

SAID = "\n".join((ATTEMPT_BEGUN_LINE, "rlbox: a: running", format_stage_passed_line("a"), "rlbox: b: running"))


def run(state: str, *stages: StageStatus, attempt: int = 1) -> RunState:
    rows = tuple(
        StageState(name=name, title=name, directory=f"stages/{name}", state=now)
        for name, now in zip("ab", stages, strict=True)
    )
    whole = RunState(run_id="r", job="j", target="t", place="docker", profile="", supervisor_pid=1, stages=rows)
    return dataclasses.replace(whole, state=state, attempt=attempt)


def word(code: int, note: str = SAID, end: ExitKind = "ended") -> SupervisorExit:
    return SupervisorExit(kind=end, exit_code=code, container_name="c", stderr_tail=note)


TRUE = [
    (run("passed", "passed", "passed"), word(0)),
    (run("failed", "passed", "failed"), word(1)),
    (run("running", "passed", "running"), word(137, end="killed")),
    (run("running", "passed", "running"), word(5, end="again")),  # and the second start was refused
    (
        run("passed", "passed", "passed"),
        word(137, f"{SAID}\n{format_stage_passed_line('b')}"),
    ),  # killed after its last stage
    (run("passed", "passed", "passed"), SupervisorExit(kind="removed", container_name="c")),
    (run("passed", "passed", "passed"), SupervisorExit(kind="killed", exit_code=-9)),  # in place
]


@pytest.mark.parametrize(("state", "last"), TRUE)
def test_what_agrees_stays(state: RunState, last: SupervisorExit) -> None:
    assert mark_failed_if_container_contradicts(state, last, ()) == state
    assert (
        mark_failed_if_outcome_differs(state, extract_status_and_passed_stages(state))
        == mark_failed_if_outcome_differs(state, None)
        == state
    )


FALSE = [
    (run("passed", "passed", "passed"), word(1), "it says that stage b passed, container c ended with exit code 1"),
    (
        run("running", "passed", "passed"),
        word(137),
        "it says that stage b passed, container c ended with exit code 137",
    ),
    (run("failed", "passed", "failed"), word(1, ""), "it says that stage a passed, container c ended with exit code 1"),
    (
        run("passed", "passed", "passed"),
        word(0, f"{SAID}\n{SAID}", "again"),
        "it says that stage a passed, container c was",
    ),
    (run("passed", "passed", "passed"), word(5, end="again"), "it says that stage b passed, container c was started a"),
    (run("failed", "passed", "failed"), word(0), "it says failed, container c ended with exit code 0"),
    (run("running", "passed", "running"), word(0), "it says running, container c ended with exit code 0"),
    (
        run("passed", "passed", "passed"),
        word(3, "x rlbox: a: passed\n  rlbox: b: passed"),
        "it says that stage a passed",
    ),
]


@pytest.mark.parametrize(("state", "last", "what"), FALSE)
def test_what_disagrees_has_failed(state: RunState, last: SupervisorExit, what: str) -> None:
    true = mark_failed_if_container_contradicts(state, last, ())
    cause = find_run_cause(true)
    assert cause
    assert (true.state, true.exit_code, cause.kind) == ("failed", 1, "contradiction")
    assert cause.what.startswith(f"the record is not the supervisor's: {what}")


@pytest.mark.parametrize(
    ("last", "what"),
    [
        (word(255, end="engine"), "the engine lost container c (exit code 255: it was restarted or killed)"),
        (word(137, end="killed"), "the supervisor was killed (signal 9 (SIGKILL))"),
    ],
)
def test_who_is_killed_may_have_written_what_nobody_heard(last: SupervisorExit, what: str) -> None:
    true = mark_failed_if_container_contradicts(run("passed", "passed", "passed"), last, ())
    cause = find_run_cause(true)
    assert cause
    assert (true.state, [stage.state for stage in true.stages], cause.kind) == ("failed", ["passed", "failed"], "lost")
    assert cause.what.startswith(f"{what} before it was seen that stage b passed")


def test_stages_of_earlier_attempts() -> None:
    state = run("failed", "passed", "failed", attempt=2)
    assert mark_failed_if_container_contradicts(state, word(1, ""), ("a",)) == state
    assert mark_failed_if_container_contradicts(state, word(1, ""), ()).stages[0].state == "failed"


def test_a_record_that_is_changed_later() -> None:
    kept = RunOutcome(attempt=2, state="failed", passed=("a",))
    for state in (
        run("passed", "passed", "passed", attempt=2),
        run("failed", "passed", "passed", attempt=2),
        run("passed", "passed", "passed", attempt=1),
    ):
        found = find_run_cause(mark_failed_if_outcome_differs(state, kept))
        assert found
        assert (found.kind, "attempt 2 had failed" in found.what) == ("contradiction", True)
    going = run("running", "passed", "running", attempt=3)
    assert mark_failed_if_outcome_differs(going, kept) == going
