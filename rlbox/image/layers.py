"""Which packages share a layer of the image, and where the build context has what a lock names.

A group is a layer, and every large wheel one of its own. Two stages of the build lay the layers of a group: one the
large wheels, one the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from rlbox.errors import SpecError
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.target.lock import Lock, LockedGroup, Package
    from rlbox.target.target import Target

# Engines refuse an image of more than 127 layers (source: moby layer.MaxLayerDepth, 125 without the base); the base
# image, rlbox and the target's own files need the rest.
MAX_LAYERS = 90


@dataclass(frozen=True, kw_only=True)
class PythonLayer:
    """One Python layer; `packages` is empty without a lock, `torch_channel` is that of the torch wheel index."""

    name: str
    group: str
    packages: tuple[Package, ...]
    torch_channel: str = ""


@dataclass(frozen=True, kw_only=True)
class BuildStage:
    """A stage of the build: layers of a group that are installed together, each one large wheel or none of them."""

    name: str
    group: str
    layers: tuple[PythonLayer, ...]
    has_large_wheels: bool
    torch_channel: str = ""


def plan_python_layers(target: Target, lock: Lock | None) -> tuple[PythonLayer, ...]:
    """Return the image's Python layers, the least often changed group first.

    A wheel of `build.own_layer_mib` or more is a layer of its own, so that a change of its neighbours does not move it;
    when there are too many, only the largest are.
    """
    groups = {group.name: group for group in (lock.groups if lock else ())}
    alone = _alone(groups.values(), target.build.own_layer_mib << 20, max(0, MAX_LAYERS - len(target.stack)))
    return tuple(
        PythonLayer(name=name, group=spec.name, packages=part, torch_channel=_channel(spec.name, part))
        for spec in target.stack
        for name, part in _split_into_layers(
            spec.name, groups[spec.name].packages if spec.name in groups else (), alone
        )
    )


class _LayerPackages(NamedTuple):
    """The name of a layer, and the packages in it."""

    name: str
    packages: tuple[Package, ...]


def _split_into_layers(
    group: str, packages: tuple[Package, ...], own_layer_sha256: Collection[str]
) -> Iterator[_LayerPackages]:
    """Yield the name and the packages of each layer of a group: those in `own_layer_sha256`, then all others."""
    large = [package for package in packages if package.sha256 in own_layer_sha256]
    yield from (_LayerPackages(f"{group}.{package.name.lower()}", (package,)) for package in large)
    rest = tuple(package for package in packages if package.sha256 not in own_layer_sha256)
    if rest or not large:
        yield _LayerPackages(group, rest)


def group_layers_into_stages(layers: Iterable[PythonLayer]) -> tuple[BuildStage, ...]:
    together = [(name, tuple(found)) for name, found in groupby(layers, key=lambda layer: stage_of_layer(layer.name))]
    return tuple(
        BuildStage(
            name=name,
            group=found[0].group,
            layers=found,
            has_large_wheels=name != found[0].group,
            torch_channel=_channel(found[0].group, (package for layer in found for package in layer.packages)),
        )
        for name, found in together
    )


def stage_of_layer(layer_name: str) -> str:
    group, __, wheel = layer_name.partition(".")
    return f"{group}.large" if wheel else group


def layer_dir_relative_to_wheels(layer_name: str) -> str:
    """Return where below `wheels/` the build context says what a layer holds."""
    return f"{stage_of_layer(layer_name)}/{layer_name}"


def map_git_http_to_context_paths(lock: Lock) -> dict[str, str]:
    """Return where the build context has the git trees and files of a lock, by name.

    The checksum is part of the path: objects of the store have one time stamp, and BuildKit takes a file of the same
    path, size and time stamp for the one that it has (source: tonistiigi/fsutil diff_containerd.go, `sameFile`).
    """
    trees = {tree.name: f"git/{tree.name}-{tree.sha256[:12]}.tar" for tree in lock.git}
    return trees | {file.name: f"http/{file.name}-{file.sha256[:12]}" for file in lock.http}


def lock_dir_in_context(lock: Lock) -> str:
    """Return the folder of the build context that holds the lock as the image has it.

    It is copied as it stands, with a fixed time stamp, so that a changed lock runs no step. Its name is the lock's:
    BuildKit takes files of one path, size and time stamp for the same.
    """
    return f"lock/{lock.checksum()[:12]}"


def _channel(group: str, packages: Iterable[Package]) -> str:
    channels = sorted({p.source.partition("/")[2] for p in packages if p.source.startswith("torch-wheels/")})
    if len(channels) > 1:
        raise SpecError(
            _("stack.{group}: packages of two channels of the torch wheel index: {channels}").format(
                group=group, channels=", ".join(channels)
            )
        )
    return "".join(channels)


def _alone(groups: Iterable[LockedGroup], least_bytes: int, most: int) -> set[str]:
    large = [package for group in groups for package in group.packages if package.size >= least_bytes]
    return {package.sha256 for package in sorted(large, key=lambda package: (-package.size, package.name))[:most]}
