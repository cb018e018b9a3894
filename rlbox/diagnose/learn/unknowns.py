"""What stayed unknown on a machine, by template: how often, and how many hours of GPUs it cost; the costliest first."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rlbox.amounts import columns
from rlbox.diagnose.catalogue import SignatureSet
from rlbox.diagnose.learn.template import cut, shown, template_of

_SHOWN = 90


@dataclass(frozen=True, kw_only=True)
class UnknownFailure:
    """One failure whose cause no signature knew: its line, masked, and the logs or the run that show it.

    `hours` is how long it went before it failed, `gpus` on how many GPUs; 0 where that is not known. `there`: the logs
    can still be read.
    """

    text: str
    of: tuple[str, ...]
    hours: float = 0.0
    gpus: int = 0
    there: bool = True
    at: float = 0.0

    @property
    def gpu_hours(self) -> float:
        """Hours of GPUs that it cost."""
        return self.hours * self.gpus


@dataclass(frozen=True, kw_only=True)
class UnknownGroup:
    """All failures of one template; `teach` is the command that learns from the latest whose logs are there."""

    template: str
    count: int
    hours: float
    gpu_hours: float
    teach: str
    of: tuple[tuple[str, ...], ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {
            "template": self.template,
            "count": self.count,
            "hours": round(self.hours, 3),
            "gpu_hours": round(self.gpu_hours, 3),
            "teach": self.teach,
            "of": [list(names) for names in self.of],
        }


def grouped(failures: Iterable[UnknownFailure], catalogue: SignatureSet) -> list[UnknownGroup]:
    """Return failures by template, the costliest first; those that a signature knows by now are left out."""
    groups: dict[str, list[UnknownFailure]] = defaultdict(list)
    for one in failures:
        if not any(known.role != "benign" and not known.near for known in catalogue.fitting(one.text)):
            groups[shown(cut(template_of(one.text)))].append(one)
    found = [_group(template, own) for template, own in groups.items()]
    return sorted(found, key=lambda group: (-group.gpu_hours, -group.hours, -group.count, group.template))


def _group(template: str, own: list[UnknownFailure]) -> UnknownGroup:
    own = sorted(own, key=lambda one: -one.at)
    latest = next((one for one in own if one.there), None)
    return UnknownGroup(
        template=template,
        count=len(own),
        hours=sum(one.hours for one in own),
        gpu_hours=sum(one.gpu_hours for one in own),
        teach=f"rlbox diagnose {shlex.join(latest.of)} --teach" if latest else "",
        of=tuple(one.of for one in own),
    )


def table(groups: list[UnknownGroup]) -> str:
    """Return groups for people: a row each, and below each what learns from it."""
    rows = [("GPU hours", "hours", "times", "what broke first")]
    rows += [(f"{one.gpu_hours:.1f}", f"{one.hours:.1f}", str(one.count), one.template[:_SHOWN]) for one in groups]
    head, *lines = columns(rows)
    found = [head]
    for line, one in zip(lines, groups, strict=True):
        found += [line, f"  next:  {one.teach}" if one.teach else "  its logs are gone"]
    return "\n".join(found)
