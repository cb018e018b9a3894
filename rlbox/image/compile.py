"""What `rlbox compile` does: for each wheel of a target take it from the store, or compile it and keep it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.utils import parse_wheel_filename
from pydantic import TypeAdapter, ValidationError

from rlbox.amounts import columns, duration_text, size_text
from rlbox.app import App
from rlbox.artifacts.base_image import list_stored_base_files
from rlbox.artifacts.fetch import fetch_artifacts, show_fetch_progress
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.artifacts.relock import write_and_report_lock
from rlbox.artifacts.source_selection import create_file_locator
from rlbox.artifacts.store_upkeep import record_fetched_lock
from rlbox.config.schema import suggest_similar
from rlbox.errors import SpecError, WorkFailed, page
from rlbox.i18n import _
from rlbox.image.compile_env import (
    choose_job_count,
    hash_host_compiler,
    install_build_requirements,
    prepare_build_dirs,
    prepare_build_system,
    recreate_build_dir,
)
from rlbox.image.compile_run import BuiltWheel, probe_build_capacity, run_wheel_build
from rlbox.image.compile_wheel import diff_wheels, require_gpu_archs, write_reproducible_wheel
from rlbox.image.plan import ImageSources, load_image_plan
from rlbox.system.file_lock import hold_lock
from rlbox.system.files import cache_path, compute_file_sha256, write_atomic
from rlbox.system.safe_files import remove_tree
from rlbox.target.artifact import list_all_artifacts, list_compile_inputs
from rlbox.target.compiled import Compile
from rlbox.target.lock import CompileInputs, Lock, Package, compute_objects_digest, load_lock
from rlbox.target.target import Target


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Options of `rlbox compile`; no `wheel_names`: all wheels; `jobs` 0: as many as fit here."""

    wheel_names: tuple[str, ...] = ()
    jobs: int = 0
    verify: bool = False
    replace_locked_wheel: bool = False
    sources_profile: str = ""


def compile_target_wheels(app: App, target_name: str, options: CompileOptions) -> tuple[WheelResult, ...]:
    """Return what became of each wheel that the target's stack compiles; the lock names them all in the end.

    Raises
    ------
    SpecError
        The lock is missing or stale, or a name is none.
    WorkFailed
        A build failed, or gave other bytes than the lock has.
    """
    recipe = ImageSources.load(app.project, target_name)
    lock = _usable_lock(app, recipe)
    rows = _chosen(recipe.target, lock, options.wheel_names)
    told = []
    for entry, row in rows:
        work = _Work(app, recipe.target, lock, entry, row, options)
        told.append(one := work.dry() if app.dry_run else work.twice() if options.verify else work.once())
        if one.wheel and not app.dry_run:
            _lock_wheel(app, target_name, row, one.wheel)
    return tuple(told)


def _lock_wheel(app: App, name: str, row: CompileInputs, wheel: Package) -> None:
    """Put a wheel into the lock as it is now: another rlbox may have locked another wheel meanwhile."""
    lock = load_lock(app.project.lock_file(name))
    if lock is None or row not in lock.compiled:
        raise SpecError(
            _("the lock of target {name} was made anew meanwhile").format(name=name), next_step=f"rlbox compile {name}"
        )
    write_and_report_lock(app, lock, lock.with_compiled_wheel(row, wheel))


def _usable_lock(app: App, recipe: ImageSources) -> Lock:
    name = recipe.target.name
    if not recipe.target.list_compile_entries:
        own = app.project.target_file(name).is_relative_to(app.project.folder)
        names = _("name what it compiles in [[stack.compile]] ({page})").format(page=page("compile"))
        raise SpecError(
            _("the stack of target {name} compiles nothing").format(name=name),
            where=f"images/{name}/target.toml",
            next_step=names if own else _("rlbox init NAME; in that target of yours, {names}").format(names=names),
        )
    plan = load_image_plan(app.project, name)
    if recipe.lock is None or not (plan.lock_state == "current" or plan.lock_state.startswith("incomplete")):
        plan.require_lock()
    assert recipe.lock is not None  # noqa: S101  (a plan without a lock is refused)
    return recipe.lock


def _chosen(target: Target, lock: Lock, names: tuple[str, ...]) -> list[tuple[Compile, CompileInputs]]:
    entries = {entry.distribution: entry for __, entry in target.list_compile_entries}
    if unknown := [name for name in names if name not in entries]:
        raise SpecError(
            _("the stack of target {target} compiles no {unknown!r}{suggest}").format(
                target=target.name, unknown=unknown[0], suggest=suggest_similar(unknown[0], [*entries])
            ),
            where=f"images/{target.name}/target.toml",
        )
    return [(entries[row.name], row) for row in lock.compiled if not names or row.name in names]


class _Work:
    """One wheel of a target that is wanted."""

    def __init__(
        self, app: App, target: Target, lock: Lock, entry: Compile, row: CompileInputs, options: CompileOptions
    ) -> None:
        self._app, self._target, self._lock, self._entry, self._row, self._options = (
            app,
            target,
            lock,
            entry,
            row,
            options,
        )
        self._store = ObjectStore(resolve_store_dir(None))
        digest = compute_objects_digest(target, entry, row, lock.toolchain)
        self._objects = cache_path("compile", "objects", digest[:24] + hash_host_compiler(lock))
        self._jobs = choose_job_count(entry, probe_build_capacity(), options.jobs)

    def dry(self) -> WheelResult:
        """Return how it stands, nothing changed."""
        if known := self._known():
            return self._told("in the store", known)
        kept = len([path for path in self._objects.glob("*") if not path.suffix])
        expected = estimate_build_seconds(read_last_unit_seconds(self._store, self._row.name), self._jobs, kept)
        return self._told("to compile", None, seconds=expected, kept=kept)

    def once(self) -> WheelResult:
        """Return the wheel: the lock's or the note's, where the store has it, else compiled now."""
        if known := self._known():
            return self._told("in the store", known)
        with self._alone() as folder:
            if known := self._known():  # another rlbox made it meanwhile
                return self._told("in the store", known)
            self._fetch()
            built = self._build(folder, self._objects)
            wheel = self._plain(built, folder)
            self._refuse_other(wheel)
            return self._keep(wheel, built, "compiled")

    def twice(self) -> WheelResult:
        """Compile it twice, the second time without what was kept, and refuse a wheel that differs."""
        with self._alone() as folder:
            self._fetch()
            first = self._plain(self._build(folder, self._objects), folder)
            other = folder / "again"
            built = self._build(other, other / "objects")  # what a killed one made of the second time is of that
            second = self._plain(built, other)
            remove_tree(other / "objects")
            if different := diff_wheels(first, second):
                raise WorkFailed(
                    _("{row} compiled twice from one lock differs\n  {different}").format(
                        row=self._row.name, different="\n  ".join(different)
                    ),
                    where=f"{first} and {second}",
                )
            self._refuse_other(second)
            first.unlink()
            return self._keep(second, built, "the same twice")

    def _known(self) -> Package | None:
        """Return the wheel when the store has it: the one of the lock, else the one that was compiled here."""
        wheel = self._lock.find_compiled_wheel(self._row)
        if wheel and not self._options.replace_locked_wheel:
            return wheel if self._store.is_intact(wheel.sha256, wheel.size) else None
        made = find_wheel_record(self._store, self._row)
        return made.to_package(self._row) if made and not self._options.replace_locked_wheel else None

    @contextmanager
    def _alone(self) -> Iterator[Path]:
        """Yield the folder of the work while no other rlbox compiles the same."""
        folder = cache_path("compile", "work", self._row.recipe[:24])
        with hold_lock(folder / "lock", f"compilation of {self._row.name}", on_wait=self._app.say):
            yield folder
            for left in ("box", "again"):
                remove_tree(folder / left)

    def _fetch(self) -> None:
        app, store, lock = self._app, self._store, self._lock
        base = list_stored_base_files(store, lock.base, lock.platform)
        record_fetched_lock(store, lock.target, app.project.lock_file(lock.target), (*base, *list_all_artifacts(lock)))
        files = list_compile_inputs(lock, self._row)
        missing = [file for file in files if not store.is_intact(file.sha256, file.size)]
        if not missing:
            return
        size = sum(file.size for file in missing)
        sources = self._options.sources_profile or self._target.sources
        app.say(f"fetching {len(missing)} files, {size_text(size)}")
        with show_fetch_progress(app, size) as on_progress:
            fetch_artifacts(
                files, create_file_locator(app, sources, files), store, on_progress, target=self._target.name
            )

    def _build(self, folder: Path, objects: Path) -> BuiltWheel:
        app, entry, row = self._app, self._entry, self._row
        system, python = prepare_build_system(self._target, self._lock, self._store)
        site = install_build_requirements(self._target, row, self._store)
        recreate_build_dir(folder / "box", system, entry, row, self._store)
        folders = prepare_build_dirs(system, folder / "box", site, objects)
        what = f"for {', '.join(entry.cuda_archs(self._target.hardware.arch)) or 'no GPU'}"
        app.say(f"compiling {row.name} {what}, {self._jobs} at a time; log: {folder / 'build.log'}")
        return run_wheel_build(app, self._target, entry, folders, python, self._jobs, folder / "build.log")

    def _plain(self, built: BuiltWheel, folder: Path) -> Path:
        wheel = folder / built.wheel.name
        write_reproducible_wheel(built.wheel, wheel)
        require_gpu_archs(wheel, self._row.name, self._entry.cuda_archs(self._target.hardware.arch))
        return wheel

    def _refuse_other(self, wheel: Path) -> None:
        """Refuse a wheel that is not the one of the lock, saying what differs where both are here."""
        locked = self._lock.find_compiled_wheel(self._row)
        if not locked or self._options.replace_locked_wheel or compute_file_sha256(wheel) == locked.sha256:
            return
        name = self._row.name
        raise WorkFailed(
            _("{name} was compiled to other bytes than the lock has (sha256 {sha256_file}…, not {sha256}…)").format(
                name=name, sha256_file=compute_file_sha256(wheel)[:12], sha256=locked.sha256[:12]
            ),
            where=str(wheel),
            next_step=_("rlbox compile {target} {name} --replace puts this one into the lock").format(
                target=self._target.name, name=name
            ),
        )

    def _keep(self, wheel: Path, built: BuiltWheel, state: str) -> WheelResult:
        digest, size = compute_file_sha256(wheel), wheel.stat().st_size
        self._store.import_file(wheel, digest)
        version = str(parse_wheel_filename(wheel.name)[1])
        units = {unit.file: unit.seconds for unit in built.units if unit.state != "left"}
        made = WheelRecord(
            name=self._row.name,
            version=version,
            file=wheel.name,
            sha256=digest,
            size=size,
            seconds=round(built.seconds, 1),
            jobs=self._jobs,
            units=units,
        )
        write_wheel_record(self._store, self._row, made)
        wheel.unlink()
        self._app.say(f"{wheel.name}: {size_text(size)}, {duration_text(built.seconds)}")
        return self._told(state, made.to_package(self._row), seconds=built.seconds)

    def _told(self, state: str, wheel: Package | None, *, seconds: float = 0.0, kept: int = 0) -> WheelResult:
        archs = self._entry.cuda_archs(self._target.hardware.arch)
        return WheelResult(
            inputs=self._row, state=state, archs=archs, wheel=wheel, seconds=seconds, kept_objects=kept, jobs=self._jobs
        )


@dataclass(frozen=True, kw_only=True)
class WheelRecord:
    """A wheel that was compiled: its file, how long that took in s, how many compilers ran at a time.

    `units` maps each file that a compiler was started for to its seconds; those kept from before have 0.
    """

    name: str
    version: str
    file: str
    sha256: str
    size: int
    seconds: float
    jobs: int
    units: Mapping[str, int]
    schema: Literal[1] = 1

    def to_package(self, inputs: CompileInputs) -> Package:
        """Return the wheel as its lock names it."""
        return Package(
            name=inputs.name,
            version=self.version,
            file=self.file,
            sha256=self.sha256,
            size=self.size,
            source=inputs.origin,
        )


def write_wheel_record(store: ObjectStore, inputs: CompileInputs, record: WheelRecord) -> None:
    write_atomic(_note(store, inputs.recipe), json.dumps(asdict(record), ensure_ascii=False, indent=1) + "\n")


def find_wheel_record(store: ObjectStore, inputs: CompileInputs) -> WheelRecord | None:
    """Return what a recipe gave on this machine, as long as the store holds the wheel."""
    made = _read(_note(store, inputs.recipe))
    return made if made and store.is_intact(made.sha256, made.size) else None


def read_last_unit_seconds(store: ObjectStore, wheel_name: str) -> tuple[int, ...]:
    """Return how many seconds each file of a wheel took when one of that name was compiled here last; empty: never."""
    notes = sorted((store.root / "compiled").glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    found = (made for made in map(_read, notes) if made and made.name == wheel_name and any(made.units.values()))
    return tuple(made.units.values()) if (made := next(found, None)) else ()


def _read(path: Path) -> WheelRecord | None:
    try:
        return TypeAdapter(WheelRecord).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _note(store: ObjectStore, recipe: str) -> Path:
    return store.root / "compiled" / f"{recipe}.json"


@dataclass(frozen=True, kw_only=True)
class WheelResult:
    """What became of one wheel.

    Attributes
    ----------
    state
        `in the store`, `inputs`, `the same twice`, or in a dry run `to compile`.
    wheel
        None before it was compiled.
    seconds
        How long it took; of a dry run how long it will take, as one of that name did here; 0: that is not known.
    kept_objects
        Object files that are there from before.
    jobs
        Compilers at a time.
    """

    inputs: CompileInputs
    state: str
    archs: tuple[str, ...]
    wheel: Package | None = None
    seconds: float = 0.0
    kept_objects: int = 0
    jobs: int = 0


def estimate_build_seconds(unit_seconds: Iterable[int], jobs: int, kept_objects: int) -> float:
    """Return how many seconds a build takes, by those that its files took before; 0 where nothing is known.

    Parameters
    ----------
    unit_seconds
        Seconds of each file; 0 for one that was not compiled then.
    kept_objects
        Object files that are there.
    """
    every = list(unit_seconds)
    made = [seconds for seconds in every if seconds]
    if not made:
        return 0.0
    return max(len(every) - kept_objects, 0) * (sum(made) / len(made)) / jobs


def wheel_results_json(target: str, results: Sequence[WheelResult]) -> dict[str, Any]:
    rows = [
        {
            "name": one.inputs.name,
            "recipe": one.inputs.recipe,
            "archs": list(one.archs),
            "state": one.state,
            "file": one.wheel.file if one.wheel else "",
            "sha256": one.wheel.sha256 if one.wheel else "",
            "size": one.wheel.size if one.wheel else 0,
            "seconds": round(one.seconds, 1),
            "kept": one.kept_objects,
            "jobs": one.jobs,
        }
        for one in results
    ]
    return {"target": target, "wheels": rows}


def format_wheel_results(results: Sequence[WheelResult]) -> str:
    """Return a line for each: what decides it, what it is for, how it stands."""
    return "\n".join(columns([_row(one) for one in results]))


def _row(one: WheelResult) -> tuple[str, ...]:
    head = (one.inputs.name, f"recipe {one.inputs.recipe[:12]}", ", ".join(one.archs) or "no GPU", one.state)
    if one.wheel:
        return (*head, f"sha256 {one.wheel.sha256[:12]}  {size_text(one.wheel.size)}")
    if one.seconds:
        return (*head, f"{one.kept_objects} objects kept, {one.jobs} at a time, about {duration_text(one.seconds)}")
    return (*head, f"{one.kept_objects} objects kept, {one.jobs} at a time, how long is not known before the first")
