"""Which packages share a layer of the image: a group each, and a layer of its own for every large wheel."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlbox.errors import SpecError

if TYPE_CHECKING:
    from rlbox.target.lock import Lock, LockedGroup, Package
    from rlbox.target.target import Target

# Engines refuse an image of more than 127 layers (source: moby layer.MaxLayerDepth, 125 without the base); the base
# image, rlbox and the target's own files need the rest.
MOST_LAYERS = 90


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One Python layer; `packages` is empty without a lock, `channel` is that of the torch wheel index."""

    name: str
    group: str
    packages: tuple[Package, ...]
    channel: str = ""


def plan_layers(target: Target, lock: Lock | None) -> tuple[Layer, ...]:
    """Return the image's Python layers, the least often changed group first.

    A wheel of `build.own_layer_mib` or more is a layer of its own, so that a change of its neighbours does not move it;
    when there are too many, only the largest are.
    """
    groups = {group.name: group for group in (lock.groups if lock else ())}
    alone = _alone(groups.values(), target.build.own_layer_mib << 20, max(0, MOST_LAYERS - len(target.stack)))
    return tuple(
        _layer(name, spec.name, part)
        for spec in target.stack
        for name, part in split_group(spec.name, groups[spec.name].packages if spec.name in groups else (), alone)
    )


def split_group(
    group: str, packages: tuple[Package, ...], alone: Collection[str]
) -> Iterator[tuple[str, tuple[Package, ...]]]:
    """Yield the name and the packages of each layer of a group: those with a sha256 in `alone`, then all others."""
    large = [package for package in packages if package.sha256 in alone]
    yield from ((f"{group}.{package.name.lower()}", (package,)) for package in large)
    rest = tuple(package for package in packages if package.sha256 not in alone)
    if rest or not large:
        yield group, rest


def _layer(name: str, group: str, packages: tuple[Package, ...]) -> Layer:
    channels = sorted({p.source.partition("/")[2] for p in packages if p.source.startswith("torch-wheels/")})
    if len(channels) > 1:
        raise SpecError(f"stack.{group}: packages of two channels of the torch wheel index: {', '.join(channels)}")
    return Layer(name=name, group=group, packages=packages, channel="".join(channels))


def _alone(groups: Iterable[LockedGroup], least_bytes: int, most: int) -> set[str]:
    large = [package for group in groups for package in group.packages if package.size >= least_bytes]
    return {package.sha256 for package in sorted(large, key=lambda package: (-package.size, package.name))[:most]}
