"""What the plan of a target's image is made of, and the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlbox.app import own_requirements
from rlbox.config.project import Project
from rlbox.image.names import target_tag
from rlbox.image.plan import ImagePlan, plan_image

if TYPE_CHECKING:  # pydantic is slow to import, and a remembered plan does not need it
    from rlbox.fixes.fix import Fix
    from rlbox.target.lock import Lock
    from rlbox.target.target import Target


def load_image_plan(project: Project, name: str) -> ImagePlan:
    """Return the plan of the image of target `name` with its name in an engine; errors are those of `load_target`."""
    return dataclasses.replace(ImageSources.load(project, name).plan(), tag=target_tag(project, name))


@dataclass(frozen=True, kw_only=True)
class ImageSources:
    """What the plan of an image is made of, and which file sets a key (`origins`).

    `patches` are the target's own, file name to text; `ports` those of rlbox's own jobs on the target, `JOB.PORT` to
    number: the user's own jobs would tie the image to them.
    """

    target: Target
    lock: Lock | None
    fixes: tuple[Fix, ...]
    patches: Mapping[str, str]
    ports: Mapping[str, int]
    templates: tuple[Path, ...]
    origins: Mapping[str, str]

    @classmethod
    def load(cls, project: Project, name: str) -> ImageSources:
        """Return the recipe of target `name`; errors are those of `load_target`."""
        from rlbox.fixes.catalogue import load_target_with_fixes
        from rlbox.job.load import load_ports
        from rlbox.target.lock import load_lock

        loaded = load_target_with_fixes(project, name)
        patches = project.patches(name, loaded.target.own_patches)
        return cls(
            target=loaded.target,
            lock=load_lock(project.lock_file(name)),
            fixes=loaded.fixes,
            patches={path.name: path.read_text("utf-8") for path in patches},
            ports=load_ports(Project(folder=project.roots[-1]), name),
            templates=tuple(project.template_dirs()),
            origins=loaded.origins,
        )

    def plan(self) -> ImagePlan:
        """Return the plan, without its name in an engine."""
        return plan_image(
            self.target,
            self.lock,
            own_requirements(),
            self.templates,
            patches=self.patches,
            fixes=self.fixes,
            ports=self.ports,
            origins=self.origins,
        )
