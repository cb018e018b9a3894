"""The images that an engine keeps for rlbox: whose each is, how it stands, and whether anything needs it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rlbox.amounts import align_translated, decimal_size_text
from rlbox.config.project import Project
from rlbox.config.schema import did_you_mean_hint
from rlbox.engine.connection import connect_engine
from rlbox.engine.container import TARGET_LABEL
from rlbox.errors import RlboxError, SpecError
from rlbox.i18n import _, translate
from rlbox.image.context import find_image_outdated_reason
from rlbox.image.names import (
    NO_PROJECT_TAG,
    PROJECT_NAME_VARIABLE,
    find_recorded_project_dir_or_empty,
    format_rlbox_image_tag,
    get_or_make_project_name,
    parse_image_tag_or_empty,
)
from rlbox.image.plan import load_image_plan

_SUM, _ID = "sha256:", len("sha256:") + 12


@dataclass(frozen=True, kw_only=True)
class NamedEngineImage:
    """An image with a label of rlbox, by one of its names.

    `name`: `rlbox/TARGET:PROJECT`, or the image's id where it has no name left.
    `project`: Folder of its project where this user has had it; else the project's name, empty where there is none.
    `state`: How it stands: `as its specs say`, why it is outdated, or whose it is.
    `spare`: Nothing needs it: it was replaced, or its project or target is gone.
    `containers`: Names of the containers that were made from it, running or not.
    `size`: Bytes, of which other images may share some.
    """

    name: str
    identity: str
    target: str
    project: str
    state: str
    spare: bool
    containers: tuple[str, ...]
    size: int

    @property
    def display_name(self) -> str:
        return self.name[:_ID] if self.name.startswith(_SUM) else self.name


def format_image_size_state_table(images: Sequence[NamedEngineImage]) -> list[str]:
    rows: list[Sequence[str]] = [(_("image"), _("size"), _("state"))]
    for image in images:
        state = image.state
        if image.containers:
            state = _("{state}; container {container}").format(state=state, container=image.containers[0])
        rows.append((image.display_name, decimal_size_text(image.size), state))
    return align_translated(rows)


def format_would_remove_lines(images: Iterable[NamedEngineImage]) -> list[str]:
    lines = []
    for image in images:
        text = _("would remove {image}, {size}: {state}") if image.spare else _("would remove {image}, {size}")
        size = decimal_size_text(image.size)
        lines.append(translate(text.format(image=image.display_name, size=size, state=image.state)))
    return lines


def sum_bytes_of_distinct_images(images: Iterable[NamedEngineImage]) -> int:
    return sum({row.identity: row.size for row in images}.values())


_NAMELESS = "<none>:<none>"
_SHORT = 12
"""Digits of an id that will do for one without a name."""


def list_all_rlbox_images(current_project: Project) -> list[NamedEngineImage]:
    """Return the engine's images that rlbox built, one for each name, those of this project first.

    Raises EngineError: the engine does not answer.
    """
    users: dict[str, list[str]] = {}
    for row in connect_engine().list_all_containers_with_label(TARGET_LABEL):
        container = next((str(name).lstrip("/") for name in row.get("Names") or ()), str(row.get("Id", ""))[:12])
        users.setdefault(str(row.get("ImageID", "")), []).append(container)
    own, found = get_or_make_project_name(current_project), []
    for row in connect_engine().list_images_with_label(TARGET_LABEL):
        names = [tag for tag in row.get("RepoTags") or () if tag != _NAMELESS]
        for name in names or [str(row["Id"])]:
            found.append(_describe_image(current_project, own, row, name, tuple(sorted(users.get(str(row["Id"]), ())))))
    return sorted(found, key=lambda one: (parse_image_tag_or_empty(one.name)[1] != own, one.spare, one.name))


def select_images(
    project_of_targets: Project, images: Sequence[NamedEngineImage], tags_ids_or_targets: Iterable[str]
) -> list[NamedEngineImage]:
    """Return the images of these names, ids or targets of this project, each once; `SpecError` for one there is not."""
    own = get_or_make_project_name(project_of_targets)
    found: dict[str, NamedEngineImage] = {}
    for name in tags_ids_or_targets:
        wanted = (name, f"sha256:{name.removeprefix('sha256:')}", format_rlbox_image_tag(name, own))
        named = [
            row for row in images if row.name in wanted or (len(name) >= _SHORT and row.name.startswith(wanted[1]))
        ]
        if not named:
            raise SpecError(
                _("rlbox built no image {name!r} in this engine{suggest}").format(
                    name=name, suggest=did_you_mean_hint(name, [row.name for row in images])
                ),
                next_step="rlbox images ls",
            )
        found |= {row.name: row for row in named}
    return list(found.values())


def untag_or_remove_images(images: Iterable[NamedEngineImage]) -> None:
    """Take the names off some images; one without a name left goes, unless a container has been made from it."""
    for row in images:
        connect_engine().remove_image_if_exists(row.name)


def _describe_image(
    project: Project, own: str, row: dict[str, Any], name: str, containers: tuple[str, ...]
) -> NamedEngineImage:
    target, of = parse_image_tag_or_empty(name)
    folder = find_recorded_project_dir_or_empty(of) if of else ""
    state, spare = "", False
    if name.startswith(_SUM):
        state, spare = _("replaced by a later build"), True
    elif not target:
        state = _("a name that a user gave it")
    elif of == own:
        state, spare = _of_this_project(project, row, target)
    elif of == NO_PROJECT_TAG:
        state = _("of an rlbox that had one name for all projects")
    elif not folder:
        state = _("of project {project}, of another user or machine").format(project=of)
    else:
        spare = not os.path.isdir(folder)
        text = _("its project is gone: {folder}") if spare else _("of the project in {folder}")
        state = text.format(folder=folder)
    return NamedEngineImage(
        name=name,
        identity=str(row["Id"]),
        target=target or str((row.get("Labels") or {}).get(TARGET_LABEL, "")),
        project=folder or of,
        state=state,
        spare=spare,
        containers=containers,
        size=int(row.get("Size") or 0),
    )


def _of_this_project(project: Project, row: dict[str, Any], target: str) -> tuple[str, bool]:
    if target not in project.own_pack_and_shipped_target_files():
        is_spare = PROJECT_NAME_VARIABLE not in os.environ  # a chosen name is of several folders
        return _("there is no target {target} any more").format(target=target), is_spare
    try:
        why = find_image_outdated_reason(load_image_plan(project, target), {"Config": {"Labels": row.get("Labels")}})
    except RlboxError as error:
        return _("target {target} cannot be read: {what}").format(target=target, what=error.what), False
    return (_("outdated: {why}").format(why=why) if why else _("as its specs say")), False
