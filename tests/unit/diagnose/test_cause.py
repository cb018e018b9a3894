"""Causes of stages: how processes ended, exit codes, and runs that were lost."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from rlbox.diagnose.cause import Cause, CauseKind, describe_exit, get_run_exit_code
from rlbox.i18n import _, read_translations_and_set_language, translate
from rlbox.record.supervisor_exit import (
    SupervisorExit,
    make_container_exit_info,
    make_killed_or_ended_exit_info,
    make_lost_run_cause,
)


@pytest.mark.parametrize(
    ("code", "text"), [(3, "exit code 3"), (-9, "signal 9 (SIGKILL)"), (-15, "signal 15 (SIGTERM)"), (-99, "signal 99")]
)
def test_ended(code: int, text: str) -> None:
    assert describe_exit(code) == text


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("exit", 1), ("service", 1), ("forbid", 1), ("require", 1), ("file", 1), ("ray", 1), ("oom", 1), ("program", 1),
        ("port", 5), ("need", 5), ("disk", 5),
        ("ready", 7), ("silence", 7), ("total", 7),
        ("interrupted", 130), ("bug", 3),
    ],
)  # fmt: skip
def test_exit_codes(kind: CauseKind, code: int) -> None:
    assert get_run_exit_code(Cause(kind=kind, what="")) == code


WHEN = "while stage train was running"


def container_exit(code: int, *, out_of_memory: bool = False) -> SupervisorExit:
    return make_container_exit_info("c", code, out_of_memory=out_of_memory, stderr_tail="")


@pytest.mark.parametrize(
    ("last", "what"),
    [
        (make_killed_or_ended_exit_info(7, "no secrets\n"), f"the supervisor died with exit code 7 {WHEN}: no secrets"),
        (container_exit(137), f"the supervisor was killed (signal 9 (SIGKILL)) {WHEN}"),
        (container_exit(137, out_of_memory=True), f"out of memory: the engine ended container c {WHEN}"),
        (container_exit(255), f"the engine lost container c (exit code 255: it was restarted or killed) {WHEN}"),
        (container_exit(1), f"the supervisor died with exit code 1 {WHEN}"),
        (SupervisorExit(kind="removed", container_name="c"), f"container c was removed, not by rlbox, {WHEN}"),
    ],
)
def test_how_a_container_or_supervisor_ended_is_named(last: SupervisorExit, what: str) -> None:
    cause = make_lost_run_cause(last, WHEN, "smoke-1")
    assert cause.what == what
    assert cause.kind == ("oom" if last.kind == "memory" else "lost")


def read_back(cause: Cause, **changed: Any) -> Cause:
    return Cause(**{**json.loads(json.dumps(dataclasses.asdict(cause))), **changed})


def test_a_cause_read_from_a_record_is_translated() -> None:
    what = _("stage {stage} ended with {ended}").format(stage="train", ended=describe_exit(3))
    cause = read_back(Cause(kind="exit", what=what, next_step=_("free space there, then run again")))
    read_translations_and_set_language("zh")
    assert translate(cause.what) == "阶段 train 结束：退出码 3"
    assert translate(cause.next_step) == "在那里腾出空间，再重新运行"
    assert str(cause.what) == "stage train ended with exit code 3"


@pytest.mark.parametrize(
    "messages",
    [
        {"what": {"msgid": "{missing}", "parameters": {"stage": "x"}}},
        {"what": {"msgid": "another sentence", "parameters": {}}},
        {"what": {"parameters": 3}},
        {"what": "text"},
        {"line": {"msgid": "out", "parameters": {}}},
    ],
)
def test_damaged_messages_leave_the_text(messages: dict[str, Any]) -> None:
    cause = read_back(Cause(kind="exit", what="out", line="out"), messages=messages)
    read_translations_and_set_language("zh")
    assert (translate(cause.what), cause.messages) == ("out", {})
