"""What a project is called in the names of its images, and where the projects of a name are."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from rlbox.config.project import Project
from rlbox.image.names import check_name, image_tag, split_tag, unique_name
from rlbox.system.files import state_path, write_atomic
from rlbox.system.identity import user_name
from rlbox.system.json_files import read_json_object

VARIABLE = "RLBOX_PROJECT_NAME"
_MACHINE = Path("/etc/machine-id")
_DECIDING = ("images", "templates")
"""Folders of a project that decide images: without them all of its images are those of the rlbox that is used."""


def project_name(project: Project) -> str:
    """Return the name of a project: `RLBOX_PROJECT_NAME`, else one made of its folder and this machine.

    A folder without targets, fixes and templates of its own goes by the user's name and by where rlbox is installed:
    so `rlbox run smoke` means the same image in every such folder.
    """
    if chosen := os.environ.get(VARIABLE):
        return check_name(chosen, VARIABLE)
    own = any((project.folder / name).is_dir() for name in _DECIDING)
    folder = os.path.realpath(project.folder if own else project.roots[-1])
    if own:
        return unique_name(Path(folder).name, f"{_machine()}\0{folder}")
    return unique_name(user_name(), f"{_machine()}\0{folder}\0{os.getuid()}")


def tag_of(project: Project, target: str) -> str:
    """Return the name that the image of a project's target has in an engine."""
    return image_tag(target, project_name(project))


def own_tag(project: Project, tag: str) -> str:
    """Return the name that an image gets here which is called `tag` in an archive; another's keeps its name."""
    target, _ = split_tag(tag)
    return tag_of(project, target) if target else tag


def remember_project(project: Project) -> None:
    """Note where the project of a name is, so that what is left of one that is gone can be told; no error if not."""
    name, path = project_name(project), str(project.folder)
    with contextlib.suppress(OSError):
        if known_folder(name) != path:
            write_atomic(_note(name), json.dumps({"schema": 1, "folder": path}))


def known_folder(name: str) -> str:
    """Return where the project of a name was when it last named an image; empty for one that this user has not."""
    return str(read_json_object(_note(name), links=True).get("folder", ""))


def _note(name: str) -> Path:
    return state_path("projects", f"{name}.json")


def _machine() -> str:
    with contextlib.suppress(OSError):
        if text := _MACHINE.read_text("ascii", "replace").strip():
            return text
    return os.uname().nodename
