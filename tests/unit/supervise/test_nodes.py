"""When a node of a run's cluster counts as gone, by what its port answers and a clock that the test sets."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest

from rlbox.job.plan import RayNodeAddress
from rlbox.supervise import stage_context as nodes
from rlbox.supervise.stage_context import _NodeProbe

NODE = RayNodeAddress(name="b", address="10.0.0.2", port=8110)
REFUSED, NOTHING, WELL = ConnectionRefusedError(), TimeoutError(), None


class Clock:
    """The time, which goes on by what each knock takes; `answers` are those of the node, one after another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.answers = 100.0, list[Exception | None]()
        monkeypatch.setattr(nodes.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(nodes.socket, "create_connection", self._connect)

    def _connect(self, address: tuple[str, int], timeout: float) -> Any:
        assert address == ("10.0.0.2", 8110)
        answer = self.answers.pop(0)
        self.now += timeout if isinstance(answer, TimeoutError) else 0.0
        if answer is not None:
            raise answer
        return BytesIO()


def seen(clock: Clock, *answers: Exception | None) -> list[str]:
    """Return what is seen after each knock."""
    probe = _NodeProbe(NODE)
    clock.answers = [*answers]
    found = []
    for _ in answers:
        probe.try_connection()
        found.append(probe.find_problem())
        clock.now += 0.5
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_ray_that_ended_refuses_twice(clock: Clock) -> None:
    gone = "its Ray has ended, nothing takes connections at 10.0.0.2:8110 any more"
    assert seen(clock, WELL, REFUSED, WELL, REFUSED, REFUSED, WELL) == ["", "", "", "", gone, ""]


def test_a_node_that_says_nothing_has_ten_seconds(clock: Clock) -> None:
    gone = "10.0.0.2:8110 has not answered for {} s: it is off, or a cable to it is cut"
    assert seen(clock, WELL, NOTHING, NOTHING, NOTHING, NOTHING) == ["", "", "", gone.format(10), gone.format(13)]
    assert seen(clock, NOTHING, NOTHING, WELL, NOTHING) == ["", "", "", ""]


def test_a_watch_that_slept_itself_asks_again_first(clock: Clock) -> None:
    probe = _NodeProbe(NODE)
    clock.answers = [WELL, NOTHING]
    probe.try_connection()
    clock.now += 3600
    assert probe.find_problem() == ""
    probe.try_connection()
    assert probe.find_problem() == ""
