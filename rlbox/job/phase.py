"""The phases of a stage: which line begins one, how long it may be silent, and what proves that it is alive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rlbox.config.schema import Name, PatternText, SpecModel, suggest_similar
from rlbox.config.units import Seconds
from rlbox.i18n import _

FLOORS: Mapping[str, float] = {
    "read": 16 * 1024,
    "write": 16 * 1024,
    "network": 128 * 1024,
    "memory": 1024 * 1024,
    "cpu": 0.2,
    "gpu": 0.35,
}
"""What an activity must reach to be a sign of life: bytes a second, cores, the share of a GPU's power limit.

Chosen so that what a hung run still does lies below. Measured: of Ray 2.60 the idle processes whose names do not tell
them from a worker read 3 kB/s, all others 15 kB/s (they are left out). An H200 whose kernel only polls a flag, as one
in a collective does, shows 100 % utilization, 0 % of memory utilization and 18 % of its power limit, like an idle
one; one that only multiplies in registers 42 %; one that copies 36 % of memory utilization at 31 % of its power.
"""


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _with_floors(value: Any) -> Any:
    """Turn `["read"]` into `{"read": FLOOR}`."""
    names = [name for name in value if isinstance(name, str)] if isinstance(value, (list, tuple, dict)) else []
    for name in names:
        if name not in FLOORS:
            raise ValueError(
                _("unknown activity {name!r}{suggest}; known: {floors}").format(
                    name=name, suggest=suggest_similar(name, list(FLOORS)), floors=", ".join(FLOORS)
                )
            )
    return {name: FLOORS[name] for name in names} if isinstance(value, (list, tuple)) else value


Floor = Annotated[float, Field(gt=0)]
Patterns = Annotated[tuple[PatternText, ...], BeforeValidator(_one_or_more)]


class Phase(SpecModel):
    """A part of a stage's work that a line of its log begins; it lasts until another phase begins, or its end line."""

    name: Name = Field(description="name of the phase; replaces a built-in phase of the same name")
    begins: Annotated[Patterns, Field(min_length=1)] = Field(
        description="RE2 patterns, one or several; a matching line starts the phase"
    )
    ends: Patterns = Field(
        (), description="RE2 patterns; a matching line ends the phase; empty: the next phase ends it"
    )
    silence_s: Seconds = Field(description="longest time without a sign of life, seconds")
    progress: Annotated[dict[str, Floor], BeforeValidator(_with_floors)] = Field(
        default_factory=dict,
        description="signs of life: read, write, network, memory (bytes/s), cpu (cores), gpu (power share)",
    )
    remedy: str = Field("", description="suggested fix if the stage hangs in this phase")

    def fill(self, fill_pattern: Callable[[str], str]) -> Phase:
        """Return the phase with the placeholders of its patterns replaced."""
        begins, ends = tuple(map(fill_pattern, self.begins)), tuple(map(fill_pattern, self.ends))
        return self.model_copy(update={"begins": begins, "ends": ends})
