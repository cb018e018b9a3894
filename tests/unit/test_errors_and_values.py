"""The words of errors, their exit codes, and values that keep a secret."""

from __future__ import annotations

import json

import pytest

from rlbox import errors
from rlbox.values import Secret

CODES = {
    "RlboxError": 1,
    "WorkFailed": 1,
    "SpecError": 2,
    "EngineError": 4,
    "EngineUnavailable": 4,
    "MachineError": 5,
    "RegistryError": 6,
    "TimedOut": 7,
    "LockHeld": 8,
    "Interrupted": 130,
}


def test_exit_codes() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    assert {kind.__name__: kind.exit_code for kind in classes} == CODES
    assert all(issubclass(kind, errors.RlboxError) for kind in classes)


@pytest.mark.parametrize(
    ("where", "next_step", "text"),
    [
        ("", "", "what"),
        ("here", "", "what\n  where: here"),
        ("", "do", "what\n  next:  do"),
        ("here", "do", "what\n  where: here\n  next:  do"),
    ],
)
def test_text(where: str, next_step: str, text: str) -> None:
    assert str(errors.RlboxError("what", where=where, next_step=next_step)) == text


def test_a_secret_shows_nowhere() -> None:
    secret = Secret("hunter2")
    assert f"{secret} {secret!r} {secret!s} {[secret]} {secret:}" == "*** *** *** [***] ***"
    assert secret.reveal() == "hunter2"
    assert (secret == Secret("hunter2"), secret == Secret("x"), secret == "hunter2") == (True, False, False)
    assert len({secret, Secret("hunter2")}) == 1
    with pytest.raises(TypeError):
        json.dumps({"token": secret})
    assert not isinstance(secret, str)
    assert not hasattr(secret, "__dict__")
