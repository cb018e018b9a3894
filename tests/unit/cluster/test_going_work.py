"""What goes on on a cluster is not ended unasked: what is asked of whom, and how it is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from clusterfacts import existing

from rlbox.cluster.lifecycle import require_unused
from rlbox.cluster.node.facts import RayInstance
from rlbox.cluster.nodes import ExistingCluster
from rlbox.cluster.plan import ClusterOptions
from rlbox.errors import LockHeld, MachineError

RUNS = [
    {"State": "running", "Labels": {"rlbox.run": "xdan-1"}},
    {"State": "exited", "Labels": {"rlbox.run": "xdan-0"}},
    {"State": "running", "Labels": {}},
]
ROWS = '[{"id": "job-1", "status": "RUNNING"}, {"id": "job-0", "status": "STOPPED"}]'


class Head:
    """The head of a cluster: its engine has `rows` of containers, its Ray answers with `said`; None: it does not."""

    name = "a"

    def __init__(self, said: str | None, rows: list[dict[str, Any]]) -> None:
        self._said, self._rows = said, rows

    def connect_docker_engine(self) -> Any:
        rows = self._rows
        return SimpleNamespace(
            list_all_containers_with_label=lambda label: rows if label.endswith("=0a1b2c3d") else [],
            stream_exec_stdout_ignoring_exit=self._execute,
        )

    def _execute(self, name: str, argv: tuple[str, ...]) -> Iterator[str]:
        assert json.loads(argv[-1])["call"] == "list"
        yield json.dumps({"error": "refused"} if self._said is None else {"jobs": json.loads(self._said)})


def cluster(head: Head | None, status: str = "running") -> ExistingCluster:
    instances = {n: RayInstance(id=n, name="n", image="i", labels={}, status=status) for n in "ab"}
    links = {"a": head} if head else {}
    context = SimpleNamespace(pool=SimpleNamespace(nodes=links), options=ClusterOptions(target="mine", nodes="a,b"))
    return existing(context, instances)


@pytest.mark.parametrize(
    ("head", "error", "words"),
    [
        (Head(ROWS, []), LockHeld, "cluster pair is in use: job "),
        (Head("[]", RUNS), LockHeld, "cluster pair is in use: run xdan-1"),
        (Head(None, RUNS), LockHeld, "cluster pair is in use: run xdan-1"),
        (Head(None, []), MachineError, "is not known: refused"),
        (None, MachineError, "is not known: its head is not reached"),
    ],
)
def test_it_is_refused(head: Head | None, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        require_unused(cluster(head))
    assert words in str(caught.value)
    assert "rlbox cluster down mine --nodes a,b --force" in str(caught.value)


def test_what_has_ended_holds_nothing() -> None:
    """Jobs and runs that have ended; a head that has, with what was on it."""
    ended = '[{"id": "job-0", "status": "SUCCEEDED"}]'
    require_unused(cluster(Head(ended, RUNS[1:])))
    require_unused(cluster(Head(ROWS, RUNS), "exited"))


def test_the_first_of_what_goes_on_is_named_with_how_it_ends() -> None:
    again = "then the same command again; or rlbox cluster down mine --nodes a,b --force"
    for head, stop in (
        (Head(ROWS, []), "rlbox cluster stop mine --nodes a,b job-1"),
        (Head(ROWS, RUNS), "DOCKER_HOST=ssh://a rlbox stop xdan-1 --target mine --data /data"),
    ):
        with pytest.raises(LockHeld) as caught:
            require_unused(cluster(head))
        assert caught.value.next_step == f"{stop}, {again}"
