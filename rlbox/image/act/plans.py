"""The plan of a target's image, from memory while nothing that it was made from has changed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rlbox.app import own_requirements
from rlbox.files.act.folders import cache_folder, make_folder
from rlbox.image.act.plan_cache import load_cached_plan, remember_plan
from rlbox.image.plan import ImagePlan, plan_image
from rlbox.spec.project import PACKAGE, Project


def image_plan(project: Project, name: str) -> ImagePlan:
    """Return the plan of the image of target `name`; errors are those of `load_target`."""
    return load_cached_plan(project, name) or _fresh_plan(project, name)


def _fresh_plan(project: Project, name: str) -> ImagePlan:
    from rlbox.fixes.load import load_fixed_target
    from rlbox.job.load import load_ports
    from rlbox.target.lock import load_lock

    loaded = load_fixed_target(project, name)
    lock_file = project.lock_file(name)
    folders = project.template_folders()
    bytecode = make_folder(cache_folder("templates"))
    patches = project.patches(name, loaded.target.own_patches)
    texts = {path.name: path.read_text("utf-8") for path in patches}
    # The user's own jobs would tie the image to them.
    lock, ports = load_lock(lock_file), load_ports(Project(folder=project.roots[-1]), name)
    plan = plan_image(loaded.target, lock, own_requirements(), folders, bytecode, texts, loaded.fixes, ports)
    inputs = [*_shipped_jobs(project), *patches, lock_file, project.own_lock_file(name), *loaded.files]
    inputs += [*_overriding(project, loaded.files), *_sources_of_plans(folders), *_distribution_files()]
    plan = dataclasses.replace(plan, inputs=tuple(dict.fromkeys(map(str, inputs))))
    remember_plan(project, plan)
    return plan


def _shipped_jobs(project: Project) -> list[Path]:
    return sorted(project.roots[-1].glob("jobs/*.toml"))


def _overriding(project: Project, files: tuple[Path, ...]) -> list[Path]:
    """Return where a file in the project folder would take the place of a shipped one."""
    names = {path.parent.name for path in files if path.name == "target.toml"}
    return [project.folder / "images" / name / "target.toml" for name in sorted(names)] + [project.folder / "templates"]


def _sources_of_plans(folders: list[Path]) -> list[Path]:
    """Return what plans are made with, the template folders among it: a new file in one changes its time stamp.

    All pure code of rlbox counts, its tables too: what acts makes no plan.
    """
    own = [path for path in sorted(PACKAGE.rglob("*.*")) if path.suffix in (".py", ".toml") and "act" not in path.parts]
    return own + [path for folder in folders for path in (folder, *sorted(folder.rglob("*")))]


def _distribution_files() -> list[Path]:
    """Return the file that `own_requirements` are read from; a new version of rlbox may want others."""
    from importlib.metadata import files

    return [Path(str(path.locate())) for path in files("rlbox") or () if path.name == "METADATA"]
