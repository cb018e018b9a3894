"""What a machine at a target's lock has: files, links, parts, packages; its lines in /etc/environment."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from packaging.utils import canonicalize_name

from rlbox.amounts import decimal_and_gib_size_text
from rlbox.fixes.conditions import map_packages_to_version_or_empty
from rlbox.fixes.fix import Fix
from rlbox.fixes.render import HOOKS_DIR, RenderedFixes, render_fix_check_manifest_json
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.image.plan import (
    ImagePlan,
    build_container_defaults,
    format_rlbox_limits_env_value,
    hardware_python_ports_json,
)
from rlbox.provision.layout import Layout
from rlbox.provision.shell_environment import SYSTEM_PATH
from rlbox.target.lock import Lock, format_requirements
from rlbox.target.target import Target
from rlbox.values import FIXES_IN_IMAGE, LOCK_IN_IMAGE, OWN, PATCHES_IN_CONTEXT, VENV

_NAME = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def merge_env_file_joining_paths(existing_text: str, rlbox_lines: str) -> str:
    """Return a file of NAME=value lines with ours in it: other names stay, folders of a PATH are kept behind ours.

    Merging twice is merging once.
    """
    desired = dict(_assignments(rlbox_lines))
    lines, done = [], set()
    for line in _lines(existing_text):
        match = _NAME.fullmatch(line)
        name = match[1] if match else ""
        if match and name in desired:
            if name not in done:
                lines.append(f'{name}="{_joined(desired[name], match[2])}"')
            done.add(name)
        else:
            lines.append(line)
    lines += [f'{name}="{value}"' for name, value in desired.items() if name not in done]
    return "\n".join([*lines, ""])


def restore_original_env_file_lines(merged_text: str, rlbox_lines: str, original_text: str) -> str:
    """Return a merged file without ours: names of ours have the lines that they had before, every other line stays."""
    desired = {name for name, _ in _assignments(rlbox_lines)}
    old = {match[1]: line for line in _lines(original_text) if (match := _NAME.fullmatch(line))}
    lines = []
    for line in _lines(merged_text):
        match = _NAME.fullmatch(line)
        if not match or match[1] not in desired:
            lines.append(line)
        elif match[1] in old:
            lines.append(old.pop(match[1]))
    return "\n".join([*lines, ""]) if lines else ""


def _lines(text: str) -> list[str]:
    """Return the lines as they are: what else ends a line for Python is part of it for pam_env and a shell."""
    return text.removesuffix("\n").split("\n") if text else []


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if match := _NAME.fullmatch(line):
            yield match[1], match[2].strip().strip("\"'")


def _joined(ours: str, theirs: str) -> str:
    """Return two PATHs as one, each folder once.

    One that has ours behind nothing but rlbox's own folders stays: rlbox-init writes the PATH that hooks have made.
    """
    theirs = theirs.strip().strip("\"'")
    mine, there = ours.split(":"), theirs.split(":") if "/" in theirs else []
    first = takewhile(lambda folder: folder not in mine, there)
    if [folder for folder in there if folder in mine] == mine and all(one.startswith(f"{OWN}/") for one in first):
        return theirs
    folders = [*mine, *there]
    return ":".join(dict.fromkeys(folder for folder in folders if folder and "$" not in folder))


MERGED_FILES = ("/etc/environment",)
"""Files that a platform fills too: names of ours are put in, every other line stays."""
_PATCH_PROGRAMS = ("apply_patches.py", "unified_diff.py")
_SCRIPTS = ("entrypoint.sh", "init.sh", *_PATCH_PROGRAMS)
_OF_THE_MACHINE = {"ray-temp-dir": "/tmp/ray"}  # noqa: S108 - what its hook makes
"""Fixes whose hook makes a path that all of a machine share: not for a place below a prefix; there may be many."""
_OF_CONTAINERS = ("infiniband-in-container", "shared-pid-namespace")
"""Fixes that are a check alone, of what an engine was told when it started the container."""
_OF_SERVICES = {"sandbox-service": "/opt/rlbox/bin/sandbox-serve"}
"""Fixes whose check asks a service, with the program that starts it: `apply` lays files, and starts nothing."""
_ULIMITS = {"nofile": "n", "memlock": "l", "stack": "s", "nproc": "u", "core": "c", "fsize": "f", "cpu": "t"}
_FRONT = """# What the image has as ENV, whatever the caller's shell says: a run finds the same here as in a container.
rlbox_front() { # NAME FOLDER: the folder comes first, and is there once
    eval "rlbox_now=:\\${$1:-}:"
    while :; do
        case $rlbox_now in
        *":$2:"*) rlbox_now=${rlbox_now%%":$2:"*}:${rlbox_now#*":$2:"} ;;
        *) break ;;
        esac
    done
    rlbox_now=${rlbox_now#:} rlbox_now=${rlbox_now%:}
    export "$1=$2${rlbox_now:+:$rlbox_now}"
}
"""


@dataclass(frozen=True, kw_only=True)
class FileOrLinkToInstall:
    """A file (`text`, `mode`) or a link (`link_target`) at `path` of this machine; `fix_id_or_rlbox` is its fix, or
    rlbox.

    `rlbox_lines` are the lines of rlbox's in a file that a platform fills too; `text` is the whole file then.
    """

    path: str
    fix_id_or_rlbox: str
    text: str = ""
    mode: str = "0644"
    link_target: str = ""
    rlbox_lines: str = ""


class GitOrHttpArtifact(NamedTuple):
    name: str
    kind: Literal["git", "http"]
    install_path: str
    sha256: str
    octal_file_mode: str = "0644"


class SkippedItem(NamedTuple):
    item: str
    source_id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class DesiredState:
    """All that a machine at the lock has.

    `packages` maps canonical names of the stack to versions, `patch_manifest` is the manifest of source patches (empty:
    none), `patch_programs` the programs that apply them, `download_bytes` what the environment's files are to download,
    compressed. `interpreter` is what the environment is made with (empty: any of version `python`).
    """

    target: str
    lock: str
    python: str
    layout: Layout
    files: tuple[FileOrLinkToInstall, ...]
    parts: tuple[GitOrHttpArtifact, ...]
    packages: Mapping[str, str]
    requirements: str
    build_constraints: str
    apt_packages: tuple[str, ...]
    patch_manifest: str
    patch_programs: Mapping[str, str]
    download_bytes: int
    interpreter: str = ""
    skipped: tuple[SkippedItem, ...] = field(default=())


def plan_desired_state(
    target: Target,
    lock: Lock,
    rendered_fixes: RenderedFixes,
    image: ImagePlan,
    layout: Layout,
    ports: Mapping[str, int],
    rlbox_python: str,
    missing_apt_packages: frozenset[str] = frozenset(),
    *,
    interpreter: str = "",
) -> DesiredState:
    """Return what `target` asks of a machine; `rlbox_python` runs rlbox here.

    `target` and `rendered_fixes` have the data disk where this machine has it (`replace_mount_path_in_disk_and_env`).
    """
    placed = _Placed(target, rendered_fixes, image, layout, missing_apt_packages)
    packages = [package for group in lock.groups for package in group.packages]
    return DesiredState(
        target=target.name,
        lock=lock.compute_json_sha256(),
        python=target.python.version,
        layout=layout,
        files=tuple(placed.files(lock, ports, rlbox_python)),
        parts=tuple(placed.parts(lock)),
        packages={canonicalize_name(package.name): package.version for package in packages},
        requirements="".join(package.format_requirement_line_with_hash() for package in packages),
        build_constraints=format_requirements(lock.build.packages),
        apt_packages=tuple(sorted(list_target_apt_packages(target))),
        patch_manifest=image.context_files.get(PATCHES_IN_CONTEXT, ""),
        patch_programs={name: image.context_files[f"scripts/{name}"] for name in _PATCH_PROGRAMS},
        download_bytes=sum(package.size for package in packages),
        interpreter=interpreter,
        skipped=tuple(placed.skipped()),
    )


def list_target_apt_packages(target: Target) -> tuple[str, ...]:
    """Return the apt packages that a target's machine has: those of its base, and what a base image would bring."""
    return (*target.base.packages, *target.base.holds_apt)


def replace_mount_path_in_disk_and_env(target: Target, data_dir: str) -> Target:
    """Return the target with its data disk where a machine has it: where it mounts it is what its fixes are told."""
    disk = target.disk.model_copy(update={"mount": data_dir})
    mount = rf"(?<![\w./}}-]){re.escape(target.disk.mount)}(?![\w.-])"
    env = {name: re.sub(mount, lambda match: data_dir, text) for name, text in target.env.items()}
    return target.model_copy(update={"disk": disk, "env": env})


class _Placed:
    def __init__(
        self, target: Target, baked: RenderedFixes, image: ImagePlan, layout: Layout, absent: frozenset[str]
    ) -> None:
        self._target, self._baked, self._image, self._layout = target, baked, image, layout
        self._absent = absent
        paths = [file.path for file in baked.files] + list(baked.link_target_by_path)
        into = [*(tree.into for tree in target.git), *(file.into for file in target.http)]
        self._paths = (VENV, OWN, *(path for path in (*paths, *into) if layout.is_image_path_in_layout(path)))
        self._origins = {file.path: fix.id for fix in baked.fixes for file in fix.bake.file}
        self._origins |= {link.path: fix.id for fix in baked.fixes for link in fix.bake.link}

    def files(self, lock: Lock, ports: Mapping[str, int], rlbox: str) -> Iterator[FileOrLinkToInstall]:
        scripts = self._image.context_files
        for name in _SCRIPTS:
            yield self._file(f"{OWN}/libexec/{name}", scripts[f"files{OWN}/libexec/{name}"])
        for name, words in {"python": "", "rlbox": " -m rlbox"}.items():
            text = f'#!/bin/sh\nexec {shlex.quote(rlbox)}{words} "$@"\n'
            yield FileOrLinkToInstall(
                path=self._layout.add_prefix(f"{OWN}/bin/{name}"), fix_id_or_rlbox="rlbox", text=text, mode="0755"
            )
        yield self._file(LOCK_IN_IMAGE, lock.to_json_text())
        for file in self._baked.files:
            if self._layout.is_image_path_in_layout(file.path) and not self._shared(_hook_fix(file.path)):
                yield self._file(file.path, file.text, file.mode)
        for path, to in self._baked.link_target_by_path.items():
            if self._layout.is_image_path_in_layout(path):
                link, origin = self._layout.prefix_paths_in_text(to, self._paths), self._origins.get(path, "rlbox")
                yield FileOrLinkToInstall(path=self._layout.add_prefix(path), fix_id_or_rlbox=origin, link_target=link)
        target, versions = self._target, map_packages_to_version_or_empty(self._target, lock)
        hardware = hardware_python_ports_json(target, ports)
        manifest = parse_untrusted_json(render_fix_check_manifest_json(self._baked.fixes, target, versions, hardware))
        yield self._file(FIXES_IN_IMAGE, _with_left(manifest, tuple(self.skipped())))
        yield self._file(f"{OWN}/hooks/00-environment.sh", self._environment())
        if not self._layout.prefix:
            text = f"# The environment of target {target.name}, for shells that people open.\n. {OWN}/libexec/init.sh\n"
            yield self._file("/etc/profile.d/30-rlbox-applied.sh", text)

    def parts(self, lock: Lock) -> Iterator[GitOrHttpArtifact]:
        trees = {tree.name: tree.sha256 for tree in lock.git}
        files = {file.name: file.sha256 for file in lock.http}
        parts = [
            *(GitOrHttpArtifact(tree.name, "git", tree.into, trees[tree.name]) for tree in self._target.git),
            *(
                GitOrHttpArtifact(file.name, "http", file.into, files[file.name], "0755" if file.executable else "0644")
                for file in self._target.http
            ),
        ]
        for part in parts:
            if self._layout.is_image_path_in_layout(part.install_path):
                yield part._replace(install_path=self._layout.add_prefix(part.install_path))

    def skipped(self) -> Iterator[SkippedItem]:
        outside = _("it lies outside of the prefix, and has no effect below it")
        paths = (*(file.path for file in self._baked.files), *self._baked.link_target_by_path)
        sources = {path: self._origins.get(path, "rlbox") for path in paths}
        sources |= {tree.into: tree.name for tree in self._target.git}
        sources |= {file.into: file.name for file in self._target.http}
        for path, source_id in sources.items():
            if not self._layout.is_image_path_in_layout(path):
                yield SkippedItem(path, source_id, outside)
        for fix in self._baked.fixes:
            yield from (SkippedItem(what, fix.id, reason) for what, reason in self._left_of(fix))

    def _left_of(self, fix: Fix) -> Iterator[tuple[str, str]]:
        for what in _limits(fix):
            yield what, _("only whoever starts this machine's container can set it")
        if path := self._shared(fix.id):
            yield path, _("it is one for the whole machine, which --prefix leaves alone")
        if fix.id in _OF_CONTAINERS:
            yield _("check {fix}").format(fix=fix.id), _("it is about how rlbox starts a container")
        if program := _OF_SERVICES.get(fix.id):
            reason = _("it is about a service that {program} starts, when you want it")
            yield _("check {fix}").format(fix=fix.id), reason.format(program=self._layout.add_prefix(program))
        for name in sorted(self._absent & set(fix.bake.packages)):
            yield _("fix {fix}").format(fix=fix.id), _("the apt package {name} is not here").format(name=name)

    def _shared(self, fix: str) -> str:
        """Return the path of the whole machine that a fix's hook would make; empty where it may."""
        return _OF_THE_MACHINE.get(fix, "") if self._layout.prefix else ""

    def _file(self, path: str, text: str, mode: str = "0644") -> FileOrLinkToInstall:
        text = self._layout.prefix_paths_in_text(text, self._paths)
        return FileOrLinkToInstall(
            path=self._layout.add_prefix(path),
            fix_id_or_rlbox=self._origins.get(path, _hook_fix(path)),
            text=text,
            mode=mode,
            rlbox_lines=text if path in MERGED_FILES else "",
        )

    def _environment(self) -> str:
        limits = format_rlbox_limits_env_value(build_container_defaults(self._target, self._baked))
        lines = [_FRONT.rstrip()]
        lines += _exports({"LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "RLBOX_LIMITS": limits, "RLBOX_PLACE": OWN})
        lines += [f': "${{PATH:={SYSTEM_PATH}}}"']
        folders = [f"{VENV}/bin", f"{OWN}/bin"]
        folders += ["/usr/local/bin"] if self._layout.prefix else []
        lines += [f"rlbox_front PATH {self._layout.add_prefix(folder)}" for folder in reversed(folders)]
        for block in self._baked.env_blocks:
            lines += [f"# {block.id}", *_exports(block.env)]
            for name, path in block.path.items():
                lines += [f"rlbox_front {name} {shlex.quote(folder)}" for folder in reversed(path)]
        lines += [*_exports(self._target.env), *_soft_limits({**self._baked.ulimits, **self._target.run.ulimits})]
        return "\n".join([*lines, "unset rlbox_now", "unset -f rlbox_front", ""])


def _exports(env: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(text)}" for name, text in env.items()]


def _soft_limits(limits: Mapping[str, str]) -> list[str]:
    """Return the lines that set soft limits as far as the hard ones let a process."""
    rows = [(_ULIMITS.get(name), limit.partition(":")[0]) for name, limit in sorted(limits.items()) if limit]
    words = [(letter, "unlimited" if soft == "-1" else soft) for letter, soft in rows if letter]
    return [
        f'ulimit -S -{letter} {soft} 2>/dev/null || ulimit -S -{letter} "$(ulimit -H -{letter})" 2>/dev/null || :'
        for letter, soft in words
    ]


def _hook_fix(path: str) -> str:
    return path.rpartition("/")[2][3:].removesuffix(".sh") if path.startswith(f"{HOOKS_DIR}/") else "rlbox"


def _limits(fix: Fix) -> list[str]:
    run = fix.bake.run
    shm = _("/dev/shm of {size}").format(size=decimal_and_gib_size_text(run.shm_gib))  # noqa: S108 - named, not written
    limits = [_("the limit {name}={limit}").format(name=name, limit=limit) for name, limit in run.ulimits.items()]
    return [*([shm] if run.shm_gib else []), *limits]


def _with_left(manifest: dict[str, Any], left: Iterable[SkippedItem]) -> str:
    """Return the manifest of fixes; the check of one that this machine cannot have whole stops no run."""
    origins = {row.source_id for row in left}
    for fix in manifest["fixes"]:
        if fix["check"] and fix["id"] in origins:
            when = [] if fix["id"] in _OF_CONTAINERS else ["doctor"]
            fix["check"] = {**fix["check"], "when": when, "partial": True}
    return json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
