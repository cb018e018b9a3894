"""What doctor says of the sandbox's walls."""

from __future__ import annotations

from rlbox.doctor.sandbox import judge_sandbox
from rlbox.sandbox.strength import Strength


def test_walls_are_enough_or_not() -> None:
    assert judge_sandbox(None) == []
    assert judge_sandbox(Strength.of(("landlock", "seccomp"), {"namespaces": "unshare: Operation not permitted"})) == []
    (found,) = judge_sandbox(Strength.of(("seccomp",), {"landlock": "landlock: Function not implemented"}))
    assert (found.id, found.level) == ("sandbox-weak", "warning")
    assert found.seen == "landlock: landlock: Function not implemented"
