"""Names of images in an engine: `rlbox/TARGET:PROJECT`, so that no project takes another one's image away.

The project is in the name alone: no label and no digest depends on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.system.files import state_path, write_atomic
from rlbox.system.identity import get_user_name_or_uid
from rlbox.system.json_files import read_json_object_or_empty

NAMESPACE = "rlbox/"
NO_PROJECT_TAG = "latest"
"""Tag of an image that is of no project: in an archive, and in an engine where an rlbox of before kept it."""
VERIFY_TAG_SUFFIX = ".verify"
"""End of the tag of a second build, which only lives until it is compared; no project's name has a dot."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_LONGEST = 40


def format_rlbox_image_tag(target: str, project_name: str) -> str:
    return f"{NAMESPACE}{target}:{project_name}"


class TargetAndProject(NamedTuple):
    target: str
    project: str


def parse_image_tag_or_empty(tag: str) -> TargetAndProject:
    """Return target and project of an image's name; two empty words for one that rlbox did not make."""
    name, __, project = tag.rpartition(":")
    target = name.removeprefix(NAMESPACE)
    is_foreign = target == name or "/" in target or not project
    return TargetAndProject("", "") if is_foreign else TargetAndProject(target, project)


def tag_to_file_name(tag: str) -> str:
    return tag.removeprefix(NAMESPACE).replace("/", "_").replace(":", ".")


def make_hashed_project_name(prefix: str, identity: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", prefix.lower())[:_LONGEST].strip("-")
    return f"{slug or 'project'}-{hashlib.sha256(identity.encode('utf-8', 'replace')).hexdigest()[:6]}"


def validate_project_name(project_name: str, source: str) -> str:
    """Return the name that somebody chose for a project; `SpecError` unless it can be a tag."""
    if not _NAME.fullmatch(project_name):
        raise SpecError(
            _("{name!r} cannot name a project: 1 to 100 letters, digits, '_' or '-', and not '-' first").format(
                name=project_name
            ),
            where=source,
            next_step=_("choose another, or unset {where}: the folder gives a name").format(where=source),
        )
    return project_name


PROJECT_NAME_VARIABLE = "RLBOX_PROJECT_NAME"
_MACHINE = Path("/etc/machine-id")
_DECIDING = ("images", "templates")
"""Folders of a project that decide images: without them all of its images are those of the rlbox that is used."""


def get_or_make_project_name(project: Project) -> str:
    """Return the name of a project: `RLBOX_PROJECT_NAME`, else one made of its folder and this machine.

    A folder without targets, fixes and templates of its own goes by the user's name and by where rlbox is installed:
    so `rlbox run smoke` means the same image in every such folder.
    """
    if chosen := os.environ.get(PROJECT_NAME_VARIABLE):
        return validate_project_name(chosen, PROJECT_NAME_VARIABLE)
    own = any((project.folder / name).is_dir() for name in _DECIDING)
    folder = os.path.realpath(project.folder if own else project.roots[-1])
    if own:
        return make_hashed_project_name(Path(folder).name, f"{_machine()}\0{folder}")
    return make_hashed_project_name(get_user_name_or_uid(), f"{_machine()}\0{folder}\0{os.getuid()}")


def project_image_tag(project: Project, target_name: str) -> str:
    return format_rlbox_image_tag(target_name, get_or_make_project_name(project))


def map_archive_tag_or_keep_foreign(project: Project, archive_tag: str) -> str:
    """Return the name that an image gets here which is called `archive_tag` in an archive; another's keeps its name."""
    target, __ = parse_image_tag_or_empty(archive_tag)
    return project_image_tag(project, target) if target else archive_tag


def try_record_project_dir(project: Project) -> None:
    """Note where the project of a name is, so that what is left of one that is gone can be told; no error if not."""
    name, path = get_or_make_project_name(project), str(project.folder)
    with contextlib.suppress(OSError):
        if find_recorded_project_dir_or_empty(name) != path:
            write_atomic(_note(name), json.dumps({"schema": 1, "folder": path}))


def find_recorded_project_dir_or_empty(project_name: str) -> str:
    """Return where the project of a name was when it last named an image; empty for one that this user has not."""
    return str(read_json_object_or_empty(_note(project_name), follow_links=True).get("folder", ""))


def _note(name: str) -> Path:
    return state_path("projects", f"{name}.json")


def _machine() -> str:
    with contextlib.suppress(OSError):
        if text := _MACHINE.read_text("ascii", "replace").strip():
            return text
    return os.uname().nodename
