"""Plain values that plans are made of and acts return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


class Secret:
    """A value that shows as `***` everywhere but where `reveal` is called (in `act/`).

    It is no `str`, so that an f-string or a JSON encoder cannot leak it by accident.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


@dataclass(frozen=True, kw_only=True)
class Command:
    """One process to start.

    `argv` is never joined into a shell line; `env` is added to the caller's environment.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a finished process left behind; `exit_code` is negative for a signal, as in `subprocess`."""

    command: Command
    exit_code: int
    stdout: str = ""
    stderr: str = ""

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True, kw_only=True)
class Mount:
    source: str
    target: str
    read_only: bool = False


VENV, OWN = "/opt/venv", "/opt/rlbox"


PATCHES_IN_CONTEXT = "patches/manifest.json"
LOCK_IN_IMAGE, FIXES_IN_IMAGE = "/opt/rlbox/share/lock.json", "/opt/rlbox/share/fixes.json"
