"""The torch wheel index, and which groups of a target come from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlbox.target.target import Target


def torch_groups(target: Target) -> tuple[TorchGroup, ...]:
    """Return the groups of the target that come from the torch wheel index."""
    found = (group for group in target.stack if group.source == "torch-wheels")
    return tuple(TorchGroup(packages=group.packages, channel=group.channel) for group in found)


TORCH_WHEELS = "https://download.pytorch.org/whl"


@dataclass(frozen=True, kw_only=True)
class TorchGroup:
    """Requirements (`name==version`) that come from one channel of the torch wheel index."""

    packages: tuple[str, ...]
    channel: str
