"""A lane that was killed goes on: what held is not asked again, what failed or changed is."""

from __future__ import annotations

from pathlib import Path

import pytest
from lanes import Proof, State, digest, run_lane, share


def lane(state: State, asked: list[str], results: dict[str, bool], **more: bool) -> list[tuple[str, bool]]:
    def prove(name: str) -> tuple[bool, str]:
        asked.append(name)
        if name == "killed":
            raise KeyboardInterrupt
        if name == "broken":
            raise AssertionError("no engine")
        return results[name], "" if results[name] else "why"

    proofs = [Proof(key=digest(name), name=name, prove=lambda name=name: prove(name)) for name in results]
    rows = run_lane(proofs, state, at_once=1, again=more.get("again", False), say=lambda line: None)
    return [(row.name, row.held) for row in rows]


def test_what_held_is_not_asked_again(tmp_path: Path) -> None:
    state, asked = State(tmp_path / "below/state.jsonl"), list[str]()
    assert lane(state, asked, {"a": True, "b": False, "broken": True}) == [("a", True), ("b", False), ("broken", False)]
    assert "no engine" in state.rows()[digest("broken")].said
    assert lane(state, asked, {"a": True, "b": True}) == [("a", True), ("b", True)]
    assert asked == ["a", "b", "broken", "b"]
    lane(state, asked, {"a": True}, again=True)
    assert asked[-1] == "a"


def test_a_lane_that_was_killed_goes_on(tmp_path: Path) -> None:
    state, asked = State(tmp_path / "state.jsonl"), list[str]()
    with pytest.raises(KeyboardInterrupt):
        lane(state, asked, {"a": True, "killed": True, "b": True})
    with state.path.open("a") as file:
        file.write('{"key": "x", "na')  # a kill in the middle of a line
    lane(state, asked, {"a": True, "b": True})
    lane(state, asked, {"a": True, "b": True})
    assert asked.count("a") == asked.count("b") == 1


def test_digests_keep_their_parts_apart() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("a") == digest(b"a")
    assert share(1, 2) == "1 of 2 (50.0 %)"
