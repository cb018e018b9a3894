"""Which groups of a target come from the torch wheel index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlbox.sources.settings import TorchGroup

if TYPE_CHECKING:
    from rlbox.target.target import Target


def torch_groups(target: Target) -> tuple[TorchGroup, ...]:
    """Return the groups of the target that come from the torch wheel index."""
    found = (group for group in target.stack if group.source == "torch-wheels")
    return tuple(TorchGroup(packages=group.packages, channel=group.channel) for group in found)
