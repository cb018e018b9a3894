"""The lock of a target: version, sha256 and size of every external file that its image is made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from rlbox.config.schema import SpecModel
from rlbox.errors import SpecError
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.target.compiled import Compile, make_arch_build_env
from rlbox.target.target import PythonLayerSpec, Sha256, Target

LOCK_SCHEMA = 2


@dataclass(frozen=True, kw_only=True)
class Package:
    """One Python distribution and the one file of it that fits the target's interpreter; `size` in bytes.

    `file` is a wheel, or a source archive where the index has no wheel. `source` says which index has it: `python` or
    `torch-wheels/CHANNEL`; or it is the file's own address, and then a `size` of 0 is one that is not known; or it is
    `compiled/RECIPE`.
    """

    name: str
    version: str
    file: str
    sha256: str
    size: int
    source: str = "python"

    @property
    def is_from_python_or_torch_index(self) -> bool:
        return self.source.partition("/")[0] in ("python", "torch-wheels")

    @property
    def is_wheel(self) -> bool:
        return self.file.endswith(".whl")

    def format_requirement_line_with_hash(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n"


@dataclass(frozen=True, kw_only=True)
class Deb:
    """One apt package; `archive` and `path` below it are the same on every mirror (`debian`, `pool/main/…`)."""

    name: str
    version: str
    archive: str
    path: str
    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class GitTree:
    """One commit of a repository; `sha256` and `size` are those of rlbox's own archive of its tree."""

    name: str
    url: str
    ref: str
    commit: str
    tree: str
    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class HttpFile:
    name: str
    url: str
    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class CompileInputs:
    """What a wheel of `group` is compiled from: its source, and the `tools` beside it when it is built.

    `inputs_sha256` is of everything that decides its bytes. The wheel itself is a package of its group, as soon as
    it was compiled.
    """

    name: str
    group: str
    inputs_sha256: Sha256
    source: Package | GitTree
    tools: tuple[Package, ...]

    @property
    def compiled_wheel_package_source(self) -> str:
        return f"compiled/{self.inputs_sha256}"


@dataclass(frozen=True, kw_only=True)
class LockedPatch:
    """One file of the target's folder `patches/`."""

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class LockedPackageGroup:
    """The packages that one group adds to those below it, sorted by name."""

    name: str
    packages: tuple[Package, ...]


def format_requirements(packages: Iterable[Package]) -> str:
    return "".join(package.format_requirement_line_with_hash() for package in packages)


@dataclass(frozen=True, kw_only=True)
class Lock:
    """A target's lock.

    `spec` is the checksum of what it was made from; `runtime` is rlbox's own environment, `build` what source archives
    are built with (empty when every package is a wheel). `toolchain` are the apt packages of the system that `compiled`
    is made in. `base` is `debian:bookworm` or `NAME@sha256:DIGEST`.
    """

    target: str
    spec: str
    python: str
    platform: str
    base: str
    debs: tuple[Deb, ...] = ()
    runtime: LockedPackageGroup
    build: LockedPackageGroup = field(default=LockedPackageGroup(name="build", packages=()))
    groups: tuple[LockedPackageGroup, ...]
    git: tuple[GitTree, ...] = ()
    http: tuple[HttpFile, ...] = ()
    patches: tuple[LockedPatch, ...] = ()
    toolchain: tuple[Deb, ...] = ()
    compiled: tuple[CompileInputs, ...] = ()

    def to_json_text(self) -> str:
        """Return the lock file: stable order, one file a line, so that a diff reads well."""
        head = ("target", "spec", "python", "platform", "base")
        parts = [f'  "schema": {LOCK_SCHEMA}', *(f'  "{key}": {json.dumps(getattr(self, key))}' for key in head)]
        parts.append(f'  "apt": {_block(self.debs, 2)}')
        parts += [f'  "{group.name}": {_block(group.packages, 2)}' for group in (self.runtime, self.build)]
        groups = [
            f'    {{"name": {json.dumps(group.name)}, "packages": {_block(group.packages, 4)}}}'
            for group in self.groups
        ]
        parts.append('  "groups": [\n' + ",\n".join(groups) + "\n  ]" if groups else '  "groups": []')
        parts += [f'  "{key}": {_block(getattr(self, key), 2)}' for key in ("git", "http", "patches")]
        parts += [f'  "toolchain": {_block(self.toolchain, 2)}'] if self.toolchain else []
        rows = ",\n".join(map(_compiled_text, self.compiled))
        parts += [f'  "compiled": [\n{rows}\n  ]'] if rows else []
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def compute_json_sha256(self) -> str:
        return hashlib.sha256(self.to_json_text().encode()).hexdigest()

    def digest_without_target_and_spec(self) -> str:
        """Return the sha256 of what the lock pins, whatever target has it: the name of a lock in docs/proof.md."""
        return replace(self, target="", spec="").compute_json_sha256()

    def list_python_packages(self) -> tuple[Package, ...]:
        """Return every Python package of the image: rlbox's own, build tools, then group by group."""
        groups = (self.runtime, self.build, *self.groups)
        return tuple(package for group in groups for package in group.packages)

    def find_compiled_wheel(self, compiled: CompileInputs) -> Package | None:
        packages = (package for group in self.groups for package in group.packages)
        return next((package for package in packages if package.source == compiled.compiled_wheel_package_source), None)

    def with_compiled_wheel(self, compiled: CompileInputs, wheel: Package) -> Lock:
        return replace(self, groups=tuple(_with(group, compiled, wheel) for group in self.groups))

    def list_uncompiled_names(self) -> tuple[str, ...]:
        return tuple(row.name for row in self.compiled if self.find_compiled_wheel(row) is None)


def _block(rows: Iterable[Any], indent: int) -> str:
    lines = [" " * (indent + 2) + json.dumps(asdict(row), ensure_ascii=False) for row in rows]
    return "[\n" + ",\n".join(lines) + "\n" + " " * indent + "]" if lines else "[]"


def _compiled_text(row: CompileInputs) -> str:
    head = {"name": row.name, "group": row.group, "recipe": row.inputs_sha256}
    body = f'"source": {json.dumps(asdict(row.source), ensure_ascii=False)},\n      "tools": {_block(row.tools, 6)}}}'
    return f"    {json.dumps(head)[:-1]},\n      {body}"


def _with(group: LockedPackageGroup, compiled: CompileInputs, wheel: Package) -> LockedPackageGroup:
    if group.name != compiled.group:
        return group
    others = (package for package in group.packages if package.source != compiled.compiled_wheel_package_source)
    return replace(group, packages=tuple(sorted((*others, wheel), key=lambda package: package.name)))


def compute_lock_spec_checksum(target: Target, rlbox_requirements: tuple[str, ...]) -> str:
    """Return the checksum of everything a lock is made from: base, interpreter, groups, rlbox's own requirements."""
    made_from = {
        "base": _set_fields(target.base, "holds", "holds_apt"),
        "python": _set_fields(target.python, "before"),
        "stack": [_stack_fields(group, target.hardware.arch) for group in target.stack],
        "git": [tree.model_dump(mode="json") for tree in target.git],
        "http": [file.model_dump(mode="json") for file in target.http],
        "patches": [*target.patches_folder_file_names],
        "runtime": sorted(rlbox_requirements),
    }
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


def _stack_fields(group: PythonLayerSpec, arch: str) -> dict[str, Any]:
    """Return the fields of a group; how much memory a compiler takes decides nothing."""
    found = _set_fields(group, "wheels", "compile")
    rows = [(one, _set_fields(one, "memory_gib")) for one in group.compile]
    compiled = [{**row, "memory_gib": 0, "archs": one.list_archs_if_cuda(arch)} for one, row in rows]
    return found | ({"compile": compiled} if compiled else {})


def _set_fields(model: SpecModel, *later: str) -> dict[str, Any]:
    """Return the fields of a model; those that came `later` only when they are set, so that older locks still fit."""
    fields_ = model.model_dump(mode="json")
    return {key: value for key, value in fields_.items() if value or key not in later}


def explain_lock_fault(
    target: Target, lock: Lock | None, rlbox_requirements: tuple[str, ...], patch_texts: Mapping[str, str]
) -> str | None:
    """Return `missing`, or `stale` or `incomplete` with the reason; None for a lock that fits its spec.

    `patch_texts` maps the target's patches to their text.
    """
    if lock is None:
        return _("missing")
    made_for, wanted = (lock.python, lock.platform), (target.python.version, target.python.platform)
    if made_for != wanted:
        return _("stale: made for Python {made_for}, the spec says Python {wanted}").format(
            made_for=" on ".join(made_for), wanted=" on ".join(wanted)
        )
    if lock.target != target.name:
        return _("stale: made for the target {target!r}").format(target=lock.target)
    if lock.spec != compute_lock_spec_checksum(target, rlbox_requirements):
        return _("stale: the spec changed since")
    if waiting := lock.list_uncompiled_names():
        return _("incomplete: {names} not compiled yet").format(names=", ".join(waiting))
    changed = [
        patch.name for patch in lock.patches if patch != make_locked_patch(patch.name, patch_texts.get(patch.name, ""))
    ]
    return _("stale: {names} changed since").format(names=", ".join(changed)) if changed else None


def choose_lock_or_compile_command(target_name: str, lock_fault: str) -> str:
    return f"rlbox compile {target_name}" if lock_fault.startswith("incomplete") else f"rlbox lock {target_name}"


def make_locked_patch(name: str, diff: str) -> LockedPatch:
    return LockedPatch(name=name, sha256=hashlib.sha256(diff.encode()).hexdigest())


def load_lock(path: Path) -> Lock | None:
    """Return the lock in `path`, or None when there is none.

    Raises SpecError: the file is torn, or of another schema.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SpecError(_("{path}: cannot be read: {strerror}").format(path=path, strerror=error.strerror)) from error
    return parse_lock(text, str(path), f"rlbox lock {path.parent.name}")


def parse_lock(text: str | bytes, source: str, next_step: str = "") -> Lock:
    """Return the lock that `Lock.text` wrote; `SpecError` with `next_step` when it is torn, or of another schema."""
    try:
        data = parse_untrusted_json(text)
        if data["schema"] != LOCK_SCHEMA:
            raise SpecError(
                _("{where}: schema {schema}, this rlbox reads {schema2}").format(
                    where=source, schema=data["schema"], schema2=LOCK_SCHEMA
                ),
                next_step=next_step,
            )
        return Lock(
            **{key: str(data[key]) for key in ("target", "spec", "python", "platform", "base")},
            debs=_rows(Deb, data["apt"]),
            runtime=LockedPackageGroup(name="runtime", packages=_rows(Package, data["runtime"])),
            build=LockedPackageGroup(name="build", packages=_rows(Package, data["build"])),
            groups=tuple(
                LockedPackageGroup(name=g["name"], packages=_rows(Package, g["packages"])) for g in data["groups"]
            ),
            git=_rows(GitTree, data["git"]),
            http=_rows(HttpFile, data["http"]),
            patches=_rows(LockedPatch, data["patches"]),
            toolchain=_rows(Deb, data.get("toolchain", [])),
            compiled=tuple(map(_compiled, data.get("compiled", []))),
        )
    except (ValueError, KeyError, TypeError) as error:
        why = _("{name}: {error}").format(name=type(error).__name__, error=error)
        raise SpecError(
            _("{where}: not a lock file: {why}").format(where=source, why=why), next_step=next_step
        ) from error


def _compiled(row: Mapping[str, Any]) -> CompileInputs:
    told = row["source"]
    (source,) = _rows(GitTree, [told]) if "commit" in told else _rows(Package, [told])
    head = {"name": str(row["name"]), "group": str(row["group"]), "inputs_sha256": str(row["recipe"])}
    return CompileInputs(**head, source=source, tools=_rows(Package, row["tools"]))


_Row = TypeVar("_Row", Package, Deb, GitTree, HttpFile, LockedPatch)


def _rows(kind: type[_Row], rows: list[Mapping[str, Any]]) -> tuple[_Row, ...]:
    return tuple(kind(**row) for row in rows)


RECIPE_VERSION = 4
"""Number of the way rlbox compiles; another one when its programs or fixed settings make other bytes."""


def compute_compile_inputs_sha256(
    target: Target, entry: Compile, source: Package | GitTree, tools: Iterable[Package], toolchain: Iterable[Deb]
) -> str:
    """Return the sha256 of everything that decides a compiled wheel, hex."""
    decides = {
        "rlbox": RECIPE_VERSION,
        "name": entry.distribution_name,
        "source": source.sha256,
        "folder": entry.folder,
        "tools": sorted(package.sha256 for package in tools),
        "system": sorted(deb.sha256 for deb in toolchain) or f"this machine's: {target.base.image}",
        "python": [target.python.version, target.python.platform],
        "archs": entry.list_archs_if_cuda(target.hardware.arch),
        "cuda": entry.cuda,
        "env": make_compile_env_without_max_jobs(target, entry),
        "units": entry.units,
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def make_compile_env_without_max_jobs(target: Target, entry: Compile) -> dict[str, str]:
    """Return the environment that the spec gives a build; how many compilers it starts decides nothing."""
    given = {**make_arch_build_env(entry.list_archs_if_cuda(target.hardware.arch)), **entry.env}
    return {name: text for name, text in sorted(given.items()) if name != "MAX_JOBS"}
