"""The state that a run's events lead to: its programs can write into them, and what comes of it is read again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from test_ledger import PLAN

from rlbox.job.plan import StagePlan
from rlbox.record.state import EVENTS_FILE, load_run_state, rebuild_state, write_run_state
from rlbox.secrets.masks import SecretMasker

STAGE = StagePlan(
    name="a", title="a", directory="stages/1-a", argv=("a",), env={}, services=(), needs=(), ray=None, total_s=1,
    silence_s=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("event", "code", "cause"),
    [
        ({"event": "run", "state": "failed", "exit_code": 3}, 3, None),
        ({"event": "run", "state": "failed", "exit_code": "0; rm"}, None, None),
        ({"event": "run", "state": "failed", "exit_code": [1]}, None, None),
        ({"event": "run", "state": "failed", "exit_code": 1e400}, None, None),
        ({"event": "stage", "stage": "a", "state": "failed", "cause": "no room"}, None, "no room"),
        ({"event": "stage", "stage": "a", "state": "failed", "cause": ["no", {"room": 1}]}, None, None),
        ({"event": "stage", "stage": ["a"], "state": {"failed": 1}}, None, None),
        ({"event": ["run"], "state": ["failed"], "t": {}}, None, None),
    ],
)
def test_what_is_of_another_kind_is_left_out(
    tmp_path: Path, event: dict[str, Any], code: int | None, cause: str | None
) -> None:
    (tmp_path / EVENTS_FILE).write_text(json.dumps(event) + "\n")
    state = rebuild_state(tmp_path, dataclasses.replace(PLAN, stages=(STAGE,)))
    write_run_state(tmp_path, state, SecretMasker({}))
    assert load_run_state(tmp_path) == state
    (stage,) = state.stages
    assert (state.exit_code, stage.cause.what if stage.cause else None) == (code, cause)
