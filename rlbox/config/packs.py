"""Packs: installed Python packages with targets, jobs, fixes and sources profiles, found by their entry point."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from rlbox.errors import SpecError
from rlbox.i18n import _

ENTRY_POINT_GROUP = "rlbox.packs"
PACK_FOLDERS = ("images", "jobs", "sources", "templates/fixes")
"""What rlbox reads of a pack: other templates would change the images of all targets."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """`name` is the entry point's, `folder` that of its Python package: it has `images/`, `jobs/` ... as a project."""

    name: str
    folder: Path


def find_installed_packs() -> tuple[Pack, ...]:
    """Return the packs of this Python environment, sorted by name. Their code is not imported.

    Raises SpecError: two packs have one name, or a pack has no folder with specs.
    """
    points: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        if point.name in points:
            raise SpecError(
                _("two installed packages have a pack named {name}").format(name=point.name),
                where=_list_distributions((points[point.name], point)),
                next_step=_("uninstall one of them"),
            )
        points[point.name] = point
    return tuple(Pack(name=name, folder=_find_folder(point)) for name, point in points.items())


def _find_folder(point: EntryPoint) -> Path:
    package, *parts = point.value.split(".")  # `find_spec` imports the parents of a package
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(os.path.realpath(location), *parts)
        if any((folder / name).is_dir() for name in PACK_FOLDERS):
            return folder
    raise SpecError(
        _("pack {name}: the Python package {package} has none of the folders {folders}").format(
            name=point.name, package=point.value, folders=", ".join(f"{name}/" for name in PACK_FOLDERS)
        ),
        where=_list_distributions((point,)),
        next_step=_("install a version of the pack that has them, or uninstall it"),
    )


def _list_distributions(points: Iterable[EntryPoint]) -> str:
    return ", ".join(f"{point.dist.name} {point.dist.version}" for point in points if point.dist)
