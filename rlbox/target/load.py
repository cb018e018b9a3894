"""Read a target: its TOML with its includes, the defaults under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.config.check import check_spec, suggest
from rlbox.config.keys import dotted
from rlbox.config.load import load_toml, merge, shown_path, without_name
from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.target.target import Target

DEFAULTS = Path(__file__).with_name("defaults.toml")


@dataclass(frozen=True, kw_only=True)
class LoadedTarget:
    """A checked target, the files it was read from, the target's own first, and which of them sets each dotted key."""

    target: Target
    files: tuple[Path, ...]
    origins: Mapping[str, str]


def cuda12_variant(project: Project, name: str) -> str:
    """Return the target `NAME-cu12`, which runs on drivers older than 580, where there is one; else nothing."""
    variant = f"{name}-cu12"
    return variant if variant in project.targets() else ""


_Included = tuple[dict[str, Any], tuple[Path, ...], dict[str, str]]


def load_target(project: Project, name: str) -> LoadedTarget:
    """Return the target `name`, completed with its includes and the defaults.

    Raises
    ------
    SpecError
        Unknown target, broken TOML (with line), include cycle, or wrong keys and values (all of them).
    """
    data, files, origins = _load_included(project, name, ())
    data.pop("include", None)
    data["name"] = name
    target = check_spec(Target, merge(load_toml(DEFAULTS), data), shown_path(files[0], project), known=("include",))
    return LoadedTarget(target=target, files=(*files, DEFAULTS), origins=origins)


def _load_included(project: Project, name: str, above: tuple[str, ...]) -> _Included:
    path = project.target_file(name)
    if above[-1:] == (name,):
        raise SpecError(
            _("target {name} includes itself").format(name=name),
            where=shown_path(path, project),
            next_step=_("give its folder another name, or include another target"),
        )
    if name in above:
        raise SpecError(
            _("targets include each other: {value}").format(value=" -> ".join((*above, name))),
            where=shown_path(path, project),
            next_step=_("include another target here, or none"),
        )
    data = without_name(load_toml(path, project), shown_path(path, project), "name")
    include = data.get("include")
    if include is None:
        return data, (path,), _origins(data, path, project)
    if not isinstance(include, str):
        raise SpecError(
            _("{path}: include: must be the name of one target (got {include!r})").format(
                path=shown_path(path, project), include=include
            )
        )
    if include not in project.targets():
        near = suggest(include, list(project.targets()))
        raise SpecError(
            _("{path}: include: unknown target {include!r}{near}").format(
                path=shown_path(path, project), include=include, near=near
            ),
            next_step=_("choose one of: {targets}").format(targets=", ".join(project.targets())),
        )
    under, files, origins = _load_included(project, include, (*above, name))
    return merge(under, data), (path, *files), {**origins, **_origins(data, path, project)}


def _origins(data: Mapping[str, Any], path: Path, project: Project) -> dict[str, str]:
    shown = shown_path(path, project)
    return {key: shown for key, __ in dotted(data)}
