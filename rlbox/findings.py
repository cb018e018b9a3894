"""What `rlbox doctor` found: one value per problem, the same in text, in JSON and between container and host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rlbox.i18n import _, join

LEVELS = ("error", "warning", "note")
Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem with its next step.

    Parameters
    ----------
    id
        What is wrong, kebab-case; a cause id or a fix id where there is one.
    level
        `error`: a job fails of it. `warning`: it fails sooner or later, or is slower. `note`: good to know.
    seen
        What was measured, with the number.
    where
        Path, variable, process or `container` it was measured in.
    remedy
        The smallest next step, as a command where there is one.
    breaks
        Ids of findings, as patterns with `*`, that are consequences of this one and are left out beside it.
    covers
        Ids of fixes and causes that mean the same thing.
    """

    id: str
    title: str
    level: Level = "error"
    seen: str = ""
    where: str = ""
    remedy: str = ""
    breaks: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the finding as JSON types; `parse_finding` is the way back."""
        return asdict(self)


def join_and_count_rest(texts: Sequence[str], max_shown: int = 4) -> str:
    """Return texts as `Finding.seen` names them: the first few, then how many more there are."""
    shown = join(", ", texts[:max_shown])
    more = _("{shown} (+{count} more)").format(shown=shown, count=len(texts) - max_shown)
    return more if len(texts) > max_shown else shown


def parse_finding(data: Mapping[str, Any]) -> Finding:
    """Return the finding that `Finding.as_json` wrote; keys of a newer rlbox are left out."""
    from pydantic import TypeAdapter

    return TypeAdapter(Finding).validate_python(data)
