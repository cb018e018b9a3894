"""What doctor says of the sandbox's walls."""

from __future__ import annotations

from rlbox.doctor.sandbox import check_sandbox
from rlbox.sandbox.strength import Strength


def test_walls_are_enough_or_not() -> None:
    assert check_sandbox(None) == []
    assert check_sandbox(Strength.of(("landlock", "seccomp"), {"namespaces": "unshare: Operation not permitted"})) == []
    (found,) = check_sandbox(Strength.of(("seccomp",), {"landlock": "landlock: Function not implemented"}))
    assert (found.id, found.level) == ("sandbox-weak", "warning")
    assert found.seen == "landlock: landlock: Function not implemented"
