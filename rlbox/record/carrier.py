"""What carries a run out apart from the processes of this machine, as a container does.

A place whose runs have one writes a note before it makes it, and says how such a carrier is asked about and ended: so
the runs of a data disk are settled without knowing any place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from rlbox.causes.cause import LastWord

CarrierStatus = Literal["made", "living", "ended", "gone"]


@dataclass(frozen=True, kw_only=True)
class CarrierNote:
    """The carrier `name` of the run `run`; `engine` is the address that what runs it had when it was made.

    `started` says that it had been started: one that is missing then was removed by somebody else. `place` is where
    the run takes place, empty in notes of before there was more than one with carriers.
    """

    run: str
    name: str
    engine: str
    started: bool = False
    place: str = ""


class Carrier(Protocol):
    """One carrier, as its place reaches it; each may raise `RlboxError` when whatever runs it does not answer."""

    def status(self) -> CarrierStatus:
        """Whether it was made and not started yet, lives, has ended, or is gone."""

    def last_word(self) -> LastWord | None:
        """What is known of its end; None when it is gone by now."""

    def stop(self, grace_s: int) -> None:
        """Ask it to end, wait, and end it after `grace_s` seconds; one that is gone has ended."""

    def remove(self) -> None:
        """Clear it away."""
