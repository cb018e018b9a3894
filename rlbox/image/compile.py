"""What `rlbox compile` does: for each wheel of a target take it from the store, or compile it and keep it."""

from __future__ import annotations

import stat
import struct
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.utils import parse_wheel_filename

from rlbox.amounts import align_translated, decimal_size_text, duration_text
from rlbox.app import App
from rlbox.artifacts.fetch import fetch_missing_with_progress
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.artifacts.relock import write_and_report_lock
from rlbox.artifacts.store_upkeep import record_fetched_lock
from rlbox.config.schema import did_you_mean_hint
from rlbox.errors import SpecError, WorkFailed, get_main_docs_url
from rlbox.i18n import _
from rlbox.image.compile_env import (
    BuildDirs,
    build_wheel_in_namespaces,
    choose_job_count,
    create_cache_and_remove_partials,
    ensure_rootfs_unpacked_or_use_host,
    ensure_stored_tools_installed_in_cache,
    host_compiler_cache_suffix_or_empty,
    recreate_wheel_build_dir,
)
from rlbox.image.plan import ImagePlanInputs
from rlbox.system.file_lock import hold_lock
from rlbox.system.files import cache_path, compute_file_sha256
from rlbox.system.safe_files import remove_tree
from rlbox.target.artifact import list_compile_inputs
from rlbox.target.compiled import Compile
from rlbox.target.lock import CompileInputs, Lock, Package, compute_compile_inputs_sha256, load_lock
from rlbox.target.target import Target


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Options of `rlbox compile`; no `wheel_names`: all wheels; `max_jobs` None: as many as fit here."""

    wheel_names: tuple[str, ...] = ()
    max_jobs: int | None = None
    verify: bool = False
    replace_locked_wheel: bool = False
    sources_profile: str = ""


WheelState = Literal["in the store", "to compile", "compiled", "the same twice"]
_STATE_WORDS: dict[WheelState, str] = {
    "in the store": _("in the store"),
    "to compile": _("to compile"),
    "compiled": _("compiled"),
    "the same twice": _("the same twice"),
}


@dataclass(frozen=True, kw_only=True)
class WheelResult:
    """What became of one wheel; `wheel` is None in a dry run that would compile it."""

    inputs: CompileInputs
    state: WheelState
    archs: tuple[str, ...]
    wheel: Package | None = None


def compile_and_lock_missing_wheels(app: App, target_name: str, options: CompileOptions) -> tuple[WheelResult, ...]:
    """Return what became of each wheel that the target's stack compiles; the lock names them all in the end.

    Raises SpecError: the lock is missing or stale, or a name is none.
    Raises WorkFailed: a build failed, or gave other bytes than the lock has.
    """
    recipe = ImagePlanInputs.load(app.project, target_name)
    lock = _usable_lock(app, recipe)
    results = []
    for entry, row in _chosen(recipe.target, lock, options.wheel_names):
        compilation = _Compilation(app, recipe.target, lock, entry, row, options)
        if app.dry_run:
            results.append(compilation.look())
        else:
            results.append(compilation.compile_twice() if options.verify else compilation.compile_if_missing())
    return tuple(results)


def _usable_lock(app: App, recipe: ImagePlanInputs) -> Lock:
    name = recipe.target.name
    if not recipe.target.compile_entries:
        raise SpecError(
            _("the stack of target {name} compiles nothing").format(name=name),
            where=f"images/{name}/target.toml",
            next_step=_(
                "name the packages that it compiles in [[stack.compile]] of a target of your own ({page})"
            ).format(page=get_main_docs_url("compile")),
        )
    plan = recipe.build_plan_without_tag()
    if plan.lock and (plan.lock_fault or "").startswith("incomplete"):
        return plan.lock
    return plan.require_current_lock()


def _chosen(target: Target, lock: Lock, names: tuple[str, ...]) -> list[tuple[Compile, CompileInputs]]:
    entries = {entry.distribution_name: entry for __, entry in target.compile_entries}
    if unknown := [name for name in names if name not in entries]:
        raise SpecError(
            _("the stack of target {target} compiles no {unknown!r}{suggest}").format(
                target=target.name, unknown=unknown[0], suggest=did_you_mean_hint(unknown[0], [*entries])
            ),
            where=f"images/{target.name}/target.toml",
        )
    return [(entries[row.name], row) for row in lock.compiled if not names or row.name in names]


class _Compilation:
    def __init__(
        self, app: App, target: Target, lock: Lock, entry: Compile, row: CompileInputs, options: CompileOptions
    ) -> None:
        self._app, self._target, self._lock = app, target, lock
        self._entry, self._row, self._options = entry, row, options
        self._store = ObjectStore(resolve_store_dir(None))
        self._archs = entry.list_archs_if_cuda(target.hardware.arch)

    def look(self) -> WheelResult:
        wheel = self._find_stored()
        return self._result("in the store" if wheel else "to compile", wheel)

    def compile_if_missing(self) -> WheelResult:
        if wheel := self._find_stored():
            return self._result("in the store", wheel)
        with self._alone() as folder:
            self._lock = load_lock(self._app.project.own_or_shipped_lock_file(self._target.name)) or self._lock
            if wheel := self._find_stored():  # another rlbox made it meanwhile
                return self._result("in the store", wheel)
            self._fetch()
            return self._result("compiled", self._keep(self._build(folder, self._objects)))

    def compile_twice(self) -> WheelResult:
        with self._alone() as folder:
            self._fetch()
            first = self._build(folder, self._objects)
            second = self._build(folder / "again", folder / "again/objects")
            if different := list_different_files(first, second):
                raise WorkFailed(
                    _("{row} compiled twice from one lock differs\n  {different}").format(
                        row=self._row.name, different="\n  ".join(different)
                    ),
                    where=_("{first} and {second}").format(first=first, second=second),
                )
            first.unlink()
            return self._result("the same twice", self._keep(second))

    @property
    def _objects(self) -> Path:
        all_units = self._entry.model_copy(update={"units": ()})  # an object is the same, whichever others are made
        row, toolchain = self._row, self._lock.toolchain
        digest = compute_compile_inputs_sha256(self._target, all_units, row.source, row.tools, toolchain)
        return cache_path("compile", "objects", digest[:24] + host_compiler_cache_suffix_or_empty(self._lock))

    def _find_stored(self) -> Package | None:
        wheel = None if self._options.replace_locked_wheel else self._lock.find_compiled_wheel(self._row)
        return wheel if wheel and self._store.verify_and_mark_if_intact(wheel.sha256, wheel.size) else None

    @contextmanager
    def _alone(self) -> Iterator[Path]:
        folder = cache_path("compile", "work", self._row.inputs_sha256[:24])
        with hold_lock(
            folder / "lock", _("compilation of {name}").format(name=self._row.name), on_wait=self._app.print_status
        ):
            yield folder
            for name in ("box", "again"):
                remove_tree(folder / name)

    def _fetch(self) -> None:
        app, store, lock = self._app, self._store, self._lock
        record_fetched_lock(store, lock.target, app.project.own_or_shipped_lock_file(lock.target))
        files = list_compile_inputs(lock, self._row)
        profile = self._options.sources_profile or self._target.sources
        fetch_missing_with_progress(app, files, store, profile, self._target.name)

    def _build(self, folder: Path, objects: Path) -> Path:
        """Return the wheel in `folder`, reproducible and with kernels for the GPUs that were asked for."""
        app, entry, row = self._app, self._entry, self._row
        system, python = ensure_rootfs_unpacked_or_use_host(self._target, self._lock, self._store)
        site = ensure_stored_tools_installed_in_cache(self._target, row, self._store)
        recreate_wheel_build_dir(folder / "box", system, entry, row, self._store)
        create_cache_and_remove_partials(objects)
        folders = BuildDirs(
            system_root=system, build_dir=str(folder / "box"), site_dir=str(site), object_cache_dir=str(objects)
        )
        jobs = choose_job_count(entry, self._options.max_jobs)
        log = folder / "build.log"
        app.print_status(
            _("compiling {name} for {archs}, {jobs} at a time; log: {log}").format(
                name=row.name, archs=", ".join(self._archs) or _("no GPU"), jobs=jobs, log=log
            )
        )
        began = time.monotonic()
        built = build_wheel_in_namespaces(app, self._target, entry, folders, python, jobs, log)
        wheel = folder / built.name
        write_reproducible_wheel(built, wheel)
        app.print_status(
            f"{wheel.name}: {decimal_size_text(wheel.stat().st_size)}, {duration_text(time.monotonic() - began)}"
        )
        require_wheel_gpu_archs(wheel, row.name, self._archs)
        return wheel

    def _keep(self, wheel: Path) -> Package:
        digest, size = compute_file_sha256(wheel), wheel.stat().st_size
        locked = self._lock.find_compiled_wheel(self._row)
        if locked and not self._options.replace_locked_wheel and digest != locked.sha256:
            name = self._row.name
            raise WorkFailed(
                _("{name} was compiled to other bytes than the lock has (sha256 {sha256_file}…, not {sha256}…)").format(
                    name=name, sha256_file=digest[:12], sha256=locked.sha256[:12]
                ),
                where=str(wheel),
                next_step=_("rlbox compile {target} {name} --replace puts this one into the lock").format(
                    target=self._target.name, name=name
                ),
            )
        self._store.add_file_if_matching_return_actual_sha256(wheel, digest)
        wheel.unlink()
        package = Package(
            name=self._row.name,
            version=str(parse_wheel_filename(wheel.name)[1]),
            file=wheel.name,
            sha256=digest,
            size=size,
            source=self._row.compiled_wheel_package_source,
        )
        # another rlbox may have locked another wheel meanwhile
        name, lock = self._target.name, load_lock(self._app.project.own_or_shipped_lock_file(self._target.name))
        if lock is None or self._row not in lock.compiled:
            raise SpecError(
                _("the lock of target {name} was written again meanwhile").format(name=name),
                next_step=f"rlbox compile {name}",
            )
        write_and_report_lock(self._app, lock, lock.with_compiled_wheel(self._row, package))
        return package

    def _result(self, state: WheelState, wheel: Package | None) -> WheelResult:
        return WheelResult(inputs=self._row, state=state, archs=self._archs, wheel=wheel)


# Source: n-eiling/cricket cpu/cpu-elf2.c, fat_elf_header and fat_text_header; looked at in what nvcc 13.0 writes.
_MAGIC = struct.pack("<I", 0xBA55ED50)
_FAT = struct.Struct("<4sHHQ")
_ENTRY = struct.Struct("<HHIQ12xI")
_KERNELS = 2
"""Kind of an entry that holds machine code; 1 is PTX, which a driver would have to compile."""


def parse_gpu_archs(library: bytes) -> frozenset[str]:
    """Return the architectures (`sm_80`) that a library or an object file has machine code for.

    What is compiled for one model alone (`sm_90a`) is told as the plain one.
    """
    archs = set()
    at = library.find(_MAGIC)
    while at >= 0 and at + _FAT.size <= len(library):
        __, __, header, size = _FAT.unpack_from(library, at)
        entry, end = at + header, min(at + header + size, len(library))
        while entry + _ENTRY.size <= end:
            kind, __, head, body, arch = _ENTRY.unpack_from(library, entry)
            if kind == _KERNELS:
                archs.add(f"sm_{arch}")
            if head + body <= 0:
                break
            entry += head + body
        at = library.find(_MAGIC, at + 4)
    return frozenset(archs)


_MOMENT = (1980, 1, 1, 0, 0, 0)
_LEVEL = 6


def write_reproducible_wheel(built_wheel: Path, output: Path) -> None:
    """Write a wheel anew: files sorted, its RECORD last, one time stamp, two modes."""
    with zipfile.ZipFile(built_wheel) as built, zipfile.ZipFile(output, "w") as plain:
        rows = sorted(built.infolist(), key=lambda row: (row.filename.endswith(".dist-info/RECORD"), row.filename))
        for row in rows:
            if row.is_dir():
                continue
            mode = 0o755 if (row.external_attr >> 16) & 0o111 else 0o644
            entry = zipfile.ZipInfo(row.filename, _MOMENT)
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.create_system, entry.compress_type = 3, zipfile.ZIP_DEFLATED
            plain.writestr(entry, built.read(row), compresslevel=_LEVEL)


def read_wheel_gpu_archs(wheel: Path) -> frozenset[str]:
    with zipfile.ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if name.endswith(".so") or ".so." in name]
        return frozenset(arch for name in names for arch in parse_gpu_archs(packed.read(name)))


def list_different_files(first_wheel: Path, second_wheel: Path) -> list[str]:
    with zipfile.ZipFile(first_wheel) as first, zipfile.ZipFile(second_wheel) as second:
        names = [set(wheel.namelist()) for wheel in (first, second)]
        return sorted(
            name
            for name in names[0] | names[1]
            if name not in names[0] & names[1] or first.read(name) != second.read(name)
        )


def require_wheel_gpu_archs(wheel: Path, package: str, sm_archs: tuple[str, ...]) -> None:
    """Refuse a wheel that has no kernels for one of the architectures `sm_archs`.

    Raises WorkFailed: it was compiled for other GPUs.
    """
    found = read_wheel_gpu_archs(wheel) if sm_archs else frozenset()
    missing = [arch for arch in sm_archs if arch.rstrip("af") not in found]
    if missing:
        raise WorkFailed(
            _("{name} was compiled for {found}, and not for {missing}").format(
                name=package, found=", ".join(sorted(found)) or _("no GPU"), missing=", ".join(missing)
            ),
            where=wheel.name,
            next_step=_(
                "set the variable by which its build takes architectures, in env of {name} in [[stack.compile]]; "
                "if it is C++ alone, leave out its cuda and archs ({page})"
            ).format(name=package, page=get_main_docs_url("compile")),
        )


def wheel_results_json(target: str, results: Sequence[WheelResult]) -> dict[str, Any]:
    rows = [
        {
            "name": one.inputs.name,
            "recipe": one.inputs.inputs_sha256,
            "archs": list(one.archs),
            "state": one.state,
            "file": one.wheel.file if one.wheel else "",
            "sha256": one.wheel.sha256 if one.wheel else "",
            "size": one.wheel.size if one.wheel else 0,
        }
        for one in results
    ]
    return {"target": target, "wheels": rows}


def format_wheel_results(results: Sequence[WheelResult]) -> str:
    return "\n".join(
        align_translated(
            (
                one.inputs.name,
                _("recipe {digest}").format(digest=one.inputs.inputs_sha256[:12]),
                ", ".join(one.archs) or _("no GPU"),
                _STATE_WORDS[one.state],
                f"sha256 {one.wheel.sha256[:12]}  {decimal_size_text(one.wheel.size)}" if one.wheel else "",
            )
            for one in results
        )
    )
