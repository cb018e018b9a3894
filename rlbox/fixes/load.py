"""A target together with the fix catalogue: what the fixes ask of its operating system is part of the spec."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlbox.config.check import check_spec
from rlbox.config.load import parse_toml, read_text, shown_path, without_name
from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.fixes.applies import stack_versions
from rlbox.fixes.bake import fix_packages
from rlbox.fixes.fix import TEXT_KEYS, Fix
from rlbox.foreign import toml_table
from rlbox.target.load import load_target
from rlbox.target.target import Target


@dataclass(frozen=True, kw_only=True)
class FixedTarget:
    """A target completed with the apt packages of its fixes, the files it was read from, which of them
    sets each key, and the catalogue.
    """

    target: Target
    files: tuple[Path, ...]
    origins: Mapping[str, str]
    fixes: tuple[Fix, ...]

    @property
    def includes(self) -> tuple[str, ...]:
        """The targets that it includes, the nearest first: between its own file and the defaults stand theirs."""
        return tuple(path.parent.name for path in self.files[1:-1])


def load_fixed_target(project: Project, name: str) -> FixedTarget:
    """Return the target `name` with what the fix catalogue adds to its base; errors are those of `load_target`.

    Only what the spec itself pins decides which packages are added, so that a lock does not depend on itself.
    """
    loaded, fixes = load_target(project, name), load_fixes(project)
    target = loaded.target
    asked = fix_packages(fixes, target, stack_versions(target, None))
    if packages := [package for package in asked if package not in target.base.holds_apt]:
        base = target.base.model_copy(update={"packages": (*target.base.packages, *packages)})
        target = target.model_copy(update={"base": base})
    return FixedTarget(target=target, files=loaded.files, origins=loaded.origins, fixes=fixes)


def load_fixes(project: Project) -> tuple[Fix, ...]:
    """Return the fix catalogue, sorted by id; a file of the project takes the place of a shipped one of its name.

    Raises
    ------
    SpecError
        Broken TOML (with line), or wrong keys and values of one file.
    """
    fixes, broken = readable_fixes(project)
    if broken:
        raise broken[0]
    return fixes


def readable_fixes(project: Project) -> tuple[tuple[Fix, ...], tuple[SpecError, ...]]:
    """Return the fixes that can be read, sorted by id, and what is wrong with the files of the others."""
    fixes, broken = [], []
    for name, path in project.fix_files().items():
        shown = shown_path(path, project)
        try:
            fixes.append(_fix(name, shown, read_text(path, shown)))
        except SpecError as error:
            broken.append(error)
    return tuple(fixes), tuple(broken)


@functools.lru_cache(maxsize=1024)
def _fix(name: str, shown: str, text: str) -> Fix:
    """Return the checked fix; a text that was read before is not read again: a catalogue is some ninety of them."""
    return check_spec(Fix, {**without_name(parse_toml(text, shown), shown, "id"), "id": name}, shown)


def read_translations(files: Iterable[Path]) -> dict[str, str]:
    """Return what fixes say in Chinese by what they say in English; files that cannot be read are left out."""
    pairs: dict[str, str] = {}
    for path in files:
        with contextlib.suppress(OSError, ValueError):
            fix = toml_table(path.read_text("utf-8"))
            pairs |= {fix[key]: fix[f"{key}_zh"].strip() for key in TEXT_KEYS if key in fix and f"{key}_zh" in fix}
    return pairs | {text.strip(): translation for text, translation in pairs.items()}
