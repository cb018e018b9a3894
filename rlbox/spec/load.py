"""Read specs: parse the TOML, follow includes, lay the defaults under it, check the result."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.errors import SpecError
from rlbox.spec.check import check_spec, suggest
from rlbox.spec.compat import CompatTable
from rlbox.spec.egress import HiddenHost, HiddenHosts
from rlbox.spec.fix import Fix
from rlbox.spec.job import Job
from rlbox.spec.merge import merge
from rlbox.spec.phase import ShippedPhases
from rlbox.spec.profile import Profile
from rlbox.spec.project import PACKAGE, Project
from rlbox.spec.target import Target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # the same parser, for Python 3.10

DEFAULTS = PACKAGE / "data" / "defaults.toml"
HIDDEN_HOSTS = PACKAGE / "data" / "egress.toml"
COMPAT = PACKAGE / "data" / "compat.toml"
PHASES = PACKAGE / "data" / "phases.toml"


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A checked target and the files it was read from, the target's own first."""

    target: Target
    files: tuple[Path, ...]


def load_target(project: Project, name: str) -> Loaded:
    """Return the target `name`, completed with its includes and the defaults.

    Raises
    ------
    SpecError
        Unknown target, broken TOML (with line), include cycle, or wrong keys and values (all of them).
    """
    data, files = _load_included(project, name, ())
    data.pop("include", None)
    data["name"] = name
    target = check_spec(Target, merge(load_toml(DEFAULTS), data), _shown(files[0], project), known=("include",))
    return Loaded(target=target, files=(*files, DEFAULTS))


def load_job(project: Project, name: str) -> Job:
    """Return the job `name`; its errors are those of `load_target`."""
    path = project.job_file(name)
    shown = _shown(path, project)
    return _job(name, shown, _text(path, shown))


@functools.lru_cache(maxsize=64)
def _job(name: str, shown: str, text: str) -> Job:
    """Return the checked job; a text that was read before is not read again."""
    return check_spec(Job, {**_nameless(_parsed(text, shown), shown, "name"), "name": name}, shown)


def load_ports(project: Project, target: str) -> dict[str, int]:
    """Return `JOB.PORT` to number of the jobs of a project that run on a target; errors are those of `load_job`."""
    jobs = [load_job(project, name) for name in project.jobs()]
    return {f"{job.name}.{name}": number for job in jobs if job.target == target for name, number in job.ports.items()}


def load_profile(project: Project, name: str, above: tuple[str, ...] = ()) -> Profile:
    """Return the sources profile `name`; the rules of a profile that it includes are tried after its own.

    Its errors are those of `load_target`; `above` are the profiles that include this one.
    """
    if name in above:
        raise SpecError(f"profiles include each other: {' -> '.join((*above, name))}", next_step="break the circle")
    path = project.source_file(name)
    data = _unnamed(path, project)
    include = data.pop("include", None)
    profile = check_spec(Profile, {**data, "name": name}, _shown(path, project), known=("include",))
    if include is None:
        return profile
    known = list(project.source_profiles())
    if include not in known:
        near = suggest(str(include), known)
        raise SpecError(
            f"{_shown(path, project)}: include: unknown sources profile {include!r}{near}",
            next_step=f"choose one of: {', '.join(known)}",
        )
    under = load_profile(project, include, (*above, name))
    return profile.model_copy(update={"rule": profile.rule + under.rule, "egress": profile.egress + under.egress})


def load_fixes(project: Project) -> tuple[Fix, ...]:
    """Return the fix catalogue, sorted by id; a file of the project takes the place of a shipped one of its name.

    Raises
    ------
    SpecError
        Broken TOML (with line), or wrong keys and values of one file.
    """
    return tuple(
        _fix(name, shown := _shown(path, project), _text(path, shown)) for name, path in project.fix_files().items()
    )


@functools.lru_cache(maxsize=1024)
def _fix(name: str, shown: str, text: str) -> Fix:
    """Return the checked fix; a text that was read before is not read again: a catalogue is some ninety of them."""
    return check_spec(Fix, {**_nameless(_parsed(text, shown), shown, "id"), "id": name}, shown)


def load_hidden_hosts() -> tuple[HiddenHost, ...]:
    """Return the shipped table of hosts that software contacts by itself."""
    return check_spec(HiddenHosts, load_toml(HIDDEN_HOSTS), str(HIDDEN_HOSTS)).row


@functools.cache
def load_phases() -> ShippedPhases:
    """Return the phases of an RL run that rlbox knows by itself."""
    return check_spec(ShippedPhases, load_toml(PHASES), str(PHASES))


@functools.cache
def load_compat() -> CompatTable:
    """Return the shipped table of what fits together."""
    return check_spec(CompatTable, load_toml(COMPAT), str(COMPAT))


def load_toml(path: Path, project: Project | None = None) -> dict[str, Any]:
    """Return the parsed file; a syntax error is a `SpecError` that names file and line."""
    shown = _shown(path, project)
    return _parsed(_text(path, shown), shown)


def _parsed(text: str, shown: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = tomllib.loads(text)
        return data
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{shown}: broken TOML: {error}", next_step="correct the line named above") from error


def _text(path: Path, shown: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"{shown}: not UTF-8 text: {error}", next_step="save the file as UTF-8") from error
    except OSError as error:
        raise SpecError(f"{shown}: cannot be read: {error.strerror}") from error


def _load_included(project: Project, name: str, above: tuple[str, ...]) -> tuple[dict[str, Any], tuple[Path, ...]]:
    if name in above:
        raise SpecError(f"targets include each other: {' -> '.join((*above, name))}", next_step="break the circle")
    path = project.target_file(name)
    data = _unnamed(path, project)
    include = data.get("include")
    if include is None:
        return data, (path,)
    if not isinstance(include, str):
        raise SpecError(f"{_shown(path, project)}: include: must be the name of one target (got {include!r})")
    if include not in project.targets():
        raise SpecError(
            f"{_shown(path, project)}: include: unknown target {include!r}{suggest(include, list(project.targets()))}",
            next_step=f"choose one of: {', '.join(project.targets())}",
        )
    under, files = _load_included(project, include, (*above, name))
    return merge(under, data), (path, *files)


def _unnamed(path: Path, project: Project) -> dict[str, Any]:
    """Return the parsed file; a `name` in it is refused, for the name is the folder's or the file's own."""
    return _nameless(load_toml(path, project), _shown(path, project), "name")


def _nameless(data: dict[str, Any], shown: str, key: str) -> dict[str, Any]:
    if key in data:
        raise SpecError(
            f"{shown}: {key}: unknown key, the name is that of the folder or file", next_step="remove the key"
        )
    return data


def _shown(path: Path, project: Project | None) -> str:
    for root in project.roots if project else ():
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return str(path)
