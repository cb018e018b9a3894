"""Which packages share a layer of the image, and where the build context has what a lock names.

A group is a layer, and every large wheel one of its own. Two stages of the build lay the layers of a group: one the
large wheels, one the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.target.lock import Lock, Package
from rlbox.target.target import Target

# Engines refuse an image of more than 127 layers (source: moby layer.MaxLayerDepth, 125 without the base); the base
# image, rlbox and the target's own files need the rest.
MAX_LAYERS = 90


@dataclass(frozen=True, kw_only=True)
class PythonLayer:
    """One Python layer; `packages` is empty without a lock."""

    name: str
    group: str
    packages: tuple[Package, ...]


@dataclass(frozen=True, kw_only=True)
class BuildStage:
    """A stage of the build: layers of a group that are installed together, each one large wheel or none of them."""

    name: str
    group: str
    layers: tuple[PythonLayer, ...]
    torch_channel: str = ""

    @property
    def has_large_wheels(self) -> bool:
        return self.name != self.group


def plan_python_layers(target: Target, lock: Lock | None) -> tuple[PythonLayer, ...]:
    """Return the image's Python layers, the least often changed group first.

    A wheel of `build.own_layer_mib` or more is a layer of its own, so that a change of its neighbours does not move it;
    when there are too many, only the largest are.
    """
    packages = {group.name: group.packages for group in (lock.groups if lock else ())}
    large = [p for group in packages.values() for p in group if p.size >= target.build.own_layer_mib << 20]
    most = max(0, MAX_LAYERS - len(target.stack))
    alone = {p.sha256 for p in sorted(large, key=lambda p: (-p.size, p.name))[:most]}
    layers = []
    for spec in target.stack:
        group = packages.get(spec.name, ())
        own = [package for package in group if package.sha256 in alone]
        layers += [PythonLayer(name=f"{spec.name}.{p.name.lower()}", group=spec.name, packages=(p,)) for p in own]
        rest = tuple(package for package in group if package.sha256 not in alone)
        if rest or not own:
            layers.append(PythonLayer(name=spec.name, group=spec.name, packages=rest))
    return tuple(layers)


def group_layers_into_stages(layers: Iterable[PythonLayer]) -> tuple[BuildStage, ...]:
    stages = []
    for name, found in groupby(layers, key=lambda layer: stage_of_layer(layer.name)):
        together = tuple(found)
        group, packages = together[0].group, [package for layer in together for package in layer.packages]
        stages.append(
            BuildStage(name=name, group=group, layers=together, torch_channel=_find_torch_channel(group, packages))
        )
    return tuple(stages)


def stage_of_layer(layer_name: str) -> str:
    group, __, wheel = layer_name.partition(".")
    return f"{group}.large" if wheel else group


def layer_dir_relative_to_wheels(layer_name: str) -> str:
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


def _find_torch_channel(group: str, packages: Iterable[Package]) -> str:
    channels = sorted({p.source.partition("/")[2] for p in packages if p.source.startswith("torch-wheels/")})
    if len(channels) > 1:
        raise SpecError(
            _("stack.{group}: packages of two channels of the torch wheel index: {channels}").format(
                group=group, channels=", ".join(channels)
            )
        )
    return "".join(channels)
