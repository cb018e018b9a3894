"""What the plan of a target's image is made of, and the plan, from memory while nothing of that has changed.

A remembered plan is keyed by what it was made from: rlbox's version and the size, time stamp and inode of every input.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlbox import __version__
from rlbox.app import own_requirements
from rlbox.files.act.folders import cache_folder, make_folder, write_atomic
from rlbox.foreign import parse_json
from rlbox.image.act.named import tag_of
from rlbox.image.plan import ImagePlan, load_image_plan, plan_image
from rlbox.spec.project import PACKAGE, Project

if TYPE_CHECKING:  # pydantic is slow to import, and a remembered plan does not need it
    from rlbox.fixes.fix import Fix
    from rlbox.target.lock import Lock
    from rlbox.target.target import Target


def image_plan(project: Project, name: str) -> ImagePlan:
    """Return the plan of the image of target `name` with its name in an engine; errors are those of `load_target`."""
    return dataclasses.replace(_nameless(project, name), tag=tag_of(project, name))


def _nameless(project: Project, name: str) -> ImagePlan:
    if plan := load_cached_plan(project, name):
        return plan
    if project.kept is None:
        plan = Recipe.load(project, name).plan(template_cache(project))
        remember_plan(project, plan)
    elif (plan := project.kept.get(name)) is None:
        plan = project.kept[name] = Recipe.load(project, name).plan()
    return plan


def template_cache(project: Project) -> Path | None:
    """Return where compiled templates are kept; None in a dry run, and where that cannot be written."""
    return make_folder(cache_folder("templates")) if project.kept is None else None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the plan of an image is made of, the files that it was read from (`read`), and which sets a key (`origins`).

    `patches` are the target's own, file name to text; `ports` those of rlbox's own jobs on the target, `JOB.PORT` to
    number: the user's own jobs would tie the image to them.
    """

    target: Target
    lock: Lock | None
    fixes: tuple[Fix, ...]
    patches: Mapping[str, str]
    ports: Mapping[str, int]
    templates: tuple[Path, ...]
    read: tuple[Path, ...]
    origins: Mapping[str, str]

    @classmethod
    def load(cls, project: Project, name: str) -> Recipe:
        """Return the recipe of target `name`; errors are those of `load_target`."""
        from rlbox.fixes.load import load_fixed_target
        from rlbox.job.load import load_ports
        from rlbox.target.lock import load_lock

        loaded = load_fixed_target(project, name)
        lock_file = project.lock_file(name)
        patches = project.patches(name, loaded.target.own_patches)
        read = (*patches, lock_file, project.own_lock_file(name), *loaded.files, *_overriding(project, loaded.files))
        return cls(
            target=loaded.target,
            lock=load_lock(lock_file),
            fixes=loaded.fixes,
            patches={path.name: path.read_text("utf-8") for path in patches},
            ports=load_ports(Project(folder=project.roots[-1]), name),
            templates=tuple(project.template_folders()),
            read=(*sorted(project.roots[-1].glob("jobs/*.toml")), *read),
            origins=loaded.origins,
        )

    def plan(self, bytecode: Path | None = None) -> ImagePlan:
        """Return the plan, which names all that it was made from; `bytecode` keeps compiled templates."""
        runtime = own_requirements()
        plan = plan_image(
            self.target,
            self.lock,
            runtime,
            self.templates,
            bytecode,
            patches=self.patches,
            fixes=self.fixes,
            ports=self.ports,
            origins=self.origins,
        )
        inputs = [*self.read, *_sources_of_plans(self.templates), *_distribution_files()]
        return dataclasses.replace(plan, inputs=tuple(dict.fromkeys(map(str, inputs))))


def _overriding(project: Project, files: tuple[Path, ...]) -> list[Path]:
    """Return where a file in the project folder would take the place of a shipped one."""
    names = {path.parent.name for path in files if path.name == "target.toml"}
    return [project.folder / "images" / name / "target.toml" for name in sorted(names)] + [project.folder / "templates"]


def _sources_of_plans(folders: tuple[Path, ...]) -> list[Path]:
    """Return what plans are made with, the template folders among it: a new file in one changes its time stamp.

    All pure code of rlbox counts, its tables too: what acts makes no plan.
    """
    return [*_own_sources(), *(path for folder in folders for path in (folder, *sorted(folder.rglob("*"))))]


@functools.cache
def _own_sources() -> tuple[Path, ...]:
    """Return rlbox's own, which stay as they are while rlbox runs."""
    files = sorted(PACKAGE.rglob("*.*"))
    return tuple(path for path in files if path.suffix in (".py", ".toml") and "act" not in path.parts)


@functools.cache
def _distribution_files() -> list[Path]:
    """Return the file that `own_requirements` are read from; a new version of rlbox may want others."""
    from importlib.metadata import files

    return [Path(str(path.locate())) for path in files("rlbox") or () if path.name == "METADATA"]


def load_cached_plan(project: Project, name: str) -> ImagePlan | None:
    """Return the remembered plan of a target, or None when an input changed since or nothing is remembered."""
    try:
        data = parse_json(_memory(project, name).read_bytes())
        plan = load_image_plan(data["plan"])
        return plan if data["stamp"] == _stamp(project, name, plan.inputs) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember_plan(project: Project, plan: ImagePlan) -> None:
    """Remember `plan`, made from its `inputs`; a full or read-only cache folder is no error."""
    data = {"stamp": _stamp(project, plan.target, plan.inputs), "plan": plan.as_json()}
    try:
        write_atomic(_memory(project, plan.target), json.dumps(data))
    except OSError:
        return


def _memory(project: Project, name: str) -> Path:
    """Return the file of a plan; the stamp in it tells two plans apart that have the same."""
    return cache_folder("plans", f"{zlib.crc32(os.fsencode(_owner(project, name))):08x}.json")


def _owner(project: Project, name: str) -> str:
    return "\0".join((*map(str, project.roots), name))


def _stamp(project: Project, name: str, inputs: Sequence[str]) -> list[str]:
    own = (f"{PACKAGE}/", f"{project.roots[-1] / 'templates'}/")
    keys = (_own_key(path) if path.startswith(own) else file_key(path) for path in inputs)
    return [__version__, _owner(project, name), *map("{} {}".format, inputs, keys)]


@functools.cache
def _own_key(path: str) -> str:
    """Return the key of a file of rlbox's own, which stays as it is while rlbox runs, for all targets."""
    return file_key(path)


def file_key(path: str) -> str:
    """Return what tells one state of a file from another without reading it; empty when it is missing."""
    try:
        facts = os.stat(path)
    except OSError:
        return ""
    return f"{facts.st_ino}:{facts.st_size}:{facts.st_mtime_ns}:{facts.st_mode}"
