"""What goes on on a cluster is not ended unasked: what is asked of whom, and how it is refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from clusterfacts import plan

from rlbox.cluster.context import RunningCluster
from rlbox.cluster.facts import ClusterContainer
from rlbox.cluster.in_use import RunningWork, require_idle, require_unused
from rlbox.cluster.jobs import ClusterJob
from rlbox.cluster.options import ClusterOptions
from rlbox.errors import LockHeld, NodeError

JOB = ClusterJob(id="job-1", status="RUNNING", entrypoint="python train.py")
RUNS = [
    {"State": "running", "Labels": {"rlbox.run": "xdan-1"}},
    {"State": "exited", "Labels": {"rlbox.run": "xdan-0"}},
    {"State": "running", "Labels": {}},
]
ROWS = '[{"submission_id": "job-1", "status": "RUNNING"}, {"submission_id": "job-0", "status": "STOPPED"}]'


class Head:
    """The head of a cluster: its engine has `rows` of containers, its Ray answers with `said`; None: it does not."""

    name = "a"
    options = SimpleNamespace(data="/data")

    def __init__(self, said: str | None, rows: list[dict[str, Any]]) -> None:
        self._said, self._rows = said, rows

    def ask(self, do: str, timeout_s: float, **args: Any) -> dict[str, Any]:
        if self._said is None:
            raise NodeError("node a: Connection refused")
        return {"status": 200, "text": self._said}

    def engine(self) -> Any:
        return SimpleNamespace(list_containers=lambda label: self._rows if label.endswith("=0a1b2c3d") else [])


def cluster(head: Head | None, status: str = "running") -> tuple[Any, RunningCluster]:
    containers = {n: ClusterContainer(id=n, name="n", image="i", labels={}, status=status) for n in "ab"}
    links = {"a": head} if head else {}
    context = SimpleNamespace(fleet=SimpleNamespace(links=links), options=ClusterOptions(target="mine", nodes="a,b"))
    return context, RunningCluster(plan=plan(), containers=containers)


@pytest.mark.parametrize(
    ("head", "error", "words"),
    [
        (Head(ROWS, []), LockHeld, "cluster pair is in use: job "),
        (Head("[]", RUNS), LockHeld, "cluster pair is in use: run xdan-1"),
        (Head(None, RUNS), LockHeld, "cluster pair is in use: run xdan-1"),
        (Head(None, []), NodeError, "is not known: node a: Connection refused"),
        (None, NodeError, "is not known: its head is not reached"),
    ],
)
def test_it_is_refused(head: Head | None, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        require_unused(*cluster(head))
    assert words in str(caught.value)
    assert "rlbox cluster down mine --nodes a,b --force" in str(caught.value)


def test_what_has_ended_holds_nothing() -> None:
    """Jobs and runs that have ended; a head that has, with what was on it."""
    ended = '[{"submission_id": "job-0", "status": "SUCCEEDED"}, {"job_id": "02", "status": "RUNNING"}]'
    require_unused(*cluster(Head(ended, RUNS[1:])))
    require_unused(*cluster(Head(ROWS, RUNS), "exited"))


def test_the_first_of_what_goes_on_is_named_with_how_it_ends() -> None:
    with pytest.raises(LockHeld) as caught:
        require_idle(plan(), "mine", RunningWork(jobs=(JOB,)))
    assert caught.value.next_step == (
        "rlbox cluster stop mine job-1, then the same command again; or rlbox cluster down mine --force"
    )
    local = plan(members=tuple(replace(one, name="local") for one in plan().members[:1]))
    for found, where in ((plan(), "DOCKER_HOST=ssh://a "), (local, "")):
        with pytest.raises(LockHeld, match=r"run xdan-1, job .*job-1") as caught:
            require_idle(found, "mine", RunningWork(jobs=(JOB,), runs=("xdan-1",)))
        assert caught.value.next_step.startswith(f"{where}rlbox stop xdan-1 --target mine --data /data, then")
