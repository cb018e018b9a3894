"""The one object that lives as long as a command: where specs are, how to speak, what was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlbox.spec.project import PACKAGE, Project

if TYPE_CHECKING:
    from rlbox.plan.image import ImagePlan


@dataclass(frozen=True, kw_only=True)
class App:
    """Options that every verb shares, and the plans they start from."""

    project: Project
    as_json: bool = False
    dry_run: bool = False
    verbosity: int = 0
    colour: bool = True

    @property
    def interactive(self) -> bool:
        """Whether progress may move: a person looks at stderr."""
        return sys.stderr.isatty() and not self.as_json and self.verbosity >= 0

    def say(self, text: str) -> None:
        """Write a line of talk to stderr."""
        if self.verbosity >= 0:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def result(self, data: Mapping[str, Any], text: str) -> None:
        """Write the result to stdout: `data` as one JSON object with `--json`, else `text`."""
        if self.as_json:
            import json

            sys.stdout.write(json.dumps({"schema": 1, **data}, indent=2, ensure_ascii=False) + "\n")
        elif text:
            sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def image_plan(self, name: str) -> ImagePlan:
        """Return the plan of a target's image, from memory when none of its inputs changed."""
        from rlbox.act.plan_cache import load_cached_plan

        return load_cached_plan(self.project, name) or self._fresh_plan(name)

    def _fresh_plan(self, name: str) -> ImagePlan:
        import dataclasses

        from rlbox.act.folders import cache_folder, make_folder
        from rlbox.act.plan_cache import remember_plan
        from rlbox.fixes.load import load_fixed_target
        from rlbox.plan.image import plan_image
        from rlbox.spec.load import load_ports
        from rlbox.spec.lock import load_lock

        loaded = load_fixed_target(self.project, name)
        lock_file = self.project.lock_file(name)
        folders = self.project.template_folders()
        bytecode = make_folder(cache_folder("templates"))
        patches = self.project.patches(name, loaded.target.own_patches)
        texts = {path.name: path.read_text("utf-8") for path in patches}
        # The user's own jobs would tie the image to them.
        lock, ports = load_lock(lock_file), load_ports(Project(folder=self.project.roots[-1]), name)
        plan = plan_image(loaded.target, lock, own_requirements(), folders, bytecode, texts, loaded.fixes, ports)
        inputs = [*_shipped_jobs(self.project), *patches, lock_file, self.project.own_lock_file(name), *loaded.files]
        inputs += [*_overriding(self.project, loaded.files), *_sources_of_plans(folders)]
        inputs += _distribution_files()
        plan = dataclasses.replace(plan, inputs=tuple(dict.fromkeys(map(str, inputs))))
        remember_plan(self.project, plan)
        return plan


def _shipped_jobs(project: Project) -> list[Path]:
    return sorted(project.roots[-1].glob("jobs/*.toml"))


def _overriding(project: Project, files: tuple[Path, ...]) -> list[Path]:
    """Return where a file in the project folder would take the place of a shipped one."""
    names = {path.parent.name for path in files if path.name == "target.toml"}
    return [project.folder / "images" / name / "target.toml" for name in sorted(names)] + [project.folder / "templates"]


def _sources_of_plans(folders: list[Path]) -> list[Path]:
    """Return what plans are made with, the template folders among it: a new file in one changes its time stamp."""
    own = [path for layer in ("spec", "fixes", "plan", "data") for path in sorted((PACKAGE / layer).glob("*.*"))]
    return own + [path for folder in folders for path in (folder, *sorted(folder.rglob("*")))]


def _distribution_files() -> list[Path]:
    """Return the file that `own_requirements` are read from; a new version of rlbox may want others."""
    from importlib.metadata import files

    return [Path(str(path.locate())) for path in files("rlbox") or () if path.name == "METADATA"]


def own_requirements() -> tuple[str, ...]:
    """Return rlbox's own requirements as its distribution declares them, sorted."""
    from importlib.metadata import requires

    return tuple(sorted(line for line in requires("rlbox") or () if "extra ==" not in line))


def project_of(folder: str | None) -> Project:
    """Return the project of `--project`, `RLBOX_PROJECT`, or the working directory."""
    return Project(folder=Path(folder or os.environ.get("RLBOX_PROJECT") or os.getcwd()).resolve())
