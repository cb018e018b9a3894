"""What is said of a run whose supervisor left no last word."""

from __future__ import annotations

import pytest

from rlbox.diagnose.cause import Cause, ExitInfo, make_container_exit_info, make_lost_run_cause, make_process_exit_info

WHEN = "while stage train was running"


@pytest.mark.parametrize(
    ("last", "what"),
    [
        (
            make_process_exit_info(-9, ""),
            "the supervisor was killed (signal 9 (SIGKILL)) while stage train was running",
        ),
        (
            make_process_exit_info(7, "no secrets\n"),
            "the supervisor died with exit code 7 while stage train was running: no secrets",
        ),
        (
            make_container_exit_info("c", 137, out_of_memory=False, note=""),
            "the supervisor was killed (signal 9 (SIGKILL)) while stage train was running",
        ),
        (
            make_container_exit_info("c", 137, out_of_memory=True, note=""),
            "out of memory: the engine ended container c while stage train was running",
        ),
        (
            make_container_exit_info("c", 255, out_of_memory=False, note=""),
            "the engine lost container c (exit code 255: it was restarted or killed) while stage train was running",
        ),
        (
            make_container_exit_info("c", 1, out_of_memory=False, note=""),
            "the supervisor died with exit code 1 " + WHEN,
        ),
        (
            ExitInfo(kind="removed", container="c"),
            "container c was removed, not by rlbox, while stage train was running",
        ),
        (
            ExitInfo(kind="elsewhere", host="a"),
            "the supervisor at host a is gone while stage train was running: nothing of the run has grown since",
        ),
        (ExitInfo(kind="rebooted"), "the machine was restarted while stage train was running"),
        (ExitInfo(kind="restarted"), "the container that rlbox runs in was restarted while stage train was running"),
        (
            ExitInfo(kind="gone"),
            "the supervisor is gone without a word (killed, with all that watched over it) " + WHEN,
        ),
    ],
)
def test_every_end_is_named(last: ExitInfo, what: str) -> None:
    cause = make_lost_run_cause(last, WHEN, "smoke-1")
    assert cause.what == what
    assert cause.kind == ("oom" if last.kind == "memory" else "lost")


def test_the_next_step_is_to_go_on() -> None:
    assert make_lost_run_cause(ExitInfo(kind="gone"), WHEN, "smoke-1") == Cause(
        kind="lost",
        what="the supervisor is gone without a word (killed, with all that watched over it) " + WHEN,
        next_step="rlbox run --resume smoke-1",
    )
