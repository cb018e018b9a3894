"""What the job agent reports of a run, and when it stops the machine. The rest is tried on a real instance."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.errors import WorkFailed
from rlbox.vast import __main__ as job_agent
from rlbox.vast.remote_job import JOB_FILE, REFUSED_FILE, RUN_FILE, RemoteJob

pytestmark = pytest.mark.allow("processes")


@pytest.mark.parametrize(("ran", "stops"), [(False, 0), (True, 1)])
def test_a_job_that_never_ran_leaves_the_machine_to_who_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: bool, stops: int
) -> None:
    (tmp_path / JOB_FILE).write_text(RemoteJob(job="sft", disk=str(tmp_path), then="stop").to_json_text())
    if ran:
        (tmp_path / RUN_FILE).write_text("sft-1\n")
    stopped: list[int] = []
    monkeypatch.setenv("CONTAINER_ID", "4711")
    monkeypatch.setattr(job_agent, "request_instance_state", lambda number, state, api_key: stopped.append(number))

    def refuse(*words: str) -> None:
        raise WorkFailed("no room")

    monkeypatch.setattr(job_agent, "_run_rlbox", refuse)
    assert job_agent.run_job_agent_until_end_then_stop_if_asked(tmp_path) == 1
    assert stopped == [4711] * stops
    assert (tmp_path / REFUSED_FILE).exists() != ran


def test_one_keeps(tmp_path: Path) -> None:
    handle = job_agent.open_lock_unless_held(tmp_path / "lock", create_else_raise=True)
    assert handle is not None
    assert job_agent.run_job_agent_until_end_then_stop_if_asked(tmp_path) == 0


@pytest.mark.allow("processes")
def test_what_rlbox_refuses_there_is_told_with_its_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    with pytest.raises(WorkFailed) as refused:
        job_agent._run_rlbox("run", "nosuch", "--place", "here", "--project", str(tmp_path))
    assert refused.value.what.startswith("rlbox run nosuch: unknown job 'nosuch'")
    assert refused.value.next_step
