"""What `rlbox fetch` does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rlbox.amounts import size_text
from rlbox.app import App
from rlbox.artifacts.base_image import fetch_locked_base_image, list_stored_base_files
from rlbox.artifacts.fetch import (
    FetchResult,
    fetch_artifacts,
    format_group_sizes,
    measure_groups,
    require_compiled_wheels,
    require_disk_space,
    show_fetch_progress,
    sum_group_sizes,
)
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.artifacts.offline_export import (
    ImportResult,
    create_oci_export_documents,
    export_to_directory,
    export_to_registry,
    import_from_directory,
    import_from_registry,
    is_directory_path,
    read_export_manifest,
)
from rlbox.artifacts.source_selection import create_file_locator
from rlbox.artifacts.store_upkeep import record_fetched_lock
from rlbox.engine.reference import ImageReference, parse_reference
from rlbox.errors import SpecError, WorkFailed
from rlbox.i18n import _
from rlbox.image.plan import ImagePlan, load_image_plan
from rlbox.system.files import require_writable_directory
from rlbox.system.network_settings import read_network_settings
from rlbox.target.artifact import Artifact, list_all_artifacts, list_artifacts, list_inplace_artifacts
from rlbox.target.lock import Lock, load_lock


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """What the command line asked for; `inplace_only`: what `rlbox apply` takes, and no more."""

    inplace_only: bool = False
    sources_profile: str = ""
    store_dir: str | None = None
    jobs: int = 8
    export_to: str | None = None
    import_from: str | None = None

    @property
    def includes_base_image(self) -> bool:
        return not self.inplace_only


def fetch_target_files(app: App, target_name: str, options: FetchOptions) -> int:
    """Bring the files of a target's lock into the store, and export them if that was asked for."""
    plan = load_image_plan(app.project, target_name)
    plan.require_lock()
    lock = load_lock(app.project.lock_file(target_name))
    if lock is None:
        raise SpecError(
            _("the lock of target {name} is missing").format(name=target_name), next_step=f"rlbox lock {target_name}"
        )
    store = ObjectStore(resolve_store_dir(options.store_dir), seals=not app.dry_run)
    place = _place(options.export_to or options.import_from)
    if options.export_to and isinstance(place, Path):
        with app.checking("export"):
            require_writable_directory(place, "another with --export")
    if app.dry_run:
        return _look(app, plan, lock, store, place, options)
    if options.import_from:
        _import(app, lock, store, place, options)
    else:
        files, report = _fetch(app, plan, lock, store, options)
        if options.export_to:
            _export(app, lock, files, store, place)
        _tell(app, target_name, store, report, options)
    return 0


def _place(text: str | None) -> Path | ImageReference | None:
    """Return the folder or the registry's name that an export or import is about."""
    if not text:
        return None
    if is_directory_path(text) or Path(text).exists():
        return Path(os.path.expanduser(text)).absolute()
    host = text.partition("/")[0]
    if "/" not in text or not ("." in host or ":" in host or host == "localhost"):
        raise SpecError(
            _("{text!r} is neither a folder that is there nor a name in a registry").format(text=text),
            next_step=_("./{text} for a folder, HOST/NAME:TAG for a registry").format(text=text),
        )
    return parse_reference(text)


def _files(lock: Lock, options: FetchOptions) -> tuple[Artifact, ...]:
    """Return what is wanted, each file once: without those that have the bytes of an earlier one."""
    files = list_inplace_artifacts(lock) if options.inplace_only else list_artifacts(lock)
    return tuple({file.sha256: file for file in reversed(files)}.values())[::-1]


def _base(lock: Lock, store: ObjectStore, options: FetchOptions) -> tuple[Artifact, ...]:
    return list_stored_base_files(store, lock.base, lock.platform) if options.includes_base_image else ()


def _remember(app: App, lock: Lock, store: ObjectStore) -> None:
    """Write down what all of a lock's objects are, whichever of them are wanted now."""
    files = (*list_stored_base_files(store, lock.base, lock.platform), *list_all_artifacts(lock))
    record_fetched_lock(store, lock.target, app.project.lock_file(lock.target), files)


def _look(
    app: App,
    plan: ImagePlan,
    lock: Lock,
    store: ObjectStore,
    place: Path | ImageReference | None,
    options: FetchOptions,
) -> int:
    base = _base(lock, store, options)
    rows = measure_groups(lock, base, store.is_intact, inplace_only=options.inplace_only)
    if unknown := "@" in lock.base and not base and options.includes_base_image:
        app.not_checked("its manifest is not in the store", f"files of the base image {lock.base}")
    missing = [file for file in (*base, *_files(lock, options)) if not store.is_intact(file.sha256, file.size)]
    if options.import_from:
        source, would = f"{place}", f"import {place}"
        with app.checking("export"):
            if isinstance(place, Path):
                read_export_manifest(place)
    else:
        source, would = (
            f"sources {options.sources_profile or plan.sources_profile}",
            f"fetch {len(missing)} files" + " and the base image" * unknown,
        )
        with app.checking("store"):
            require_compiled_wheels(missing, store, plan.target)
    with app.checking("store"):
        require_disk_space(store, missing)
    if not missing and not unknown:
        would = "fetch nothing: the store holds it all"
    elif not (options.import_from and isinstance(place, Path)):
        app.not_checked("a dry run asks no network", source)
    would += f", and export it to {place}" if options.export_to else ""
    data = [{**asdict(row), "missing_bytes": row.missing_bytes} for row in (*rows, sum_group_sizes(rows))]
    facts = {"target": lock.target, "store": str(store.root), "groups": data[:-1], "total": data[-1]}
    return app.planned(facts, format_group_sizes(rows), would)


def _fetch(
    app: App, plan: ImagePlan, lock: Lock, store: ObjectStore, options: FetchOptions
) -> tuple[tuple[Artifact, ...], FetchResult]:
    profile = options.sources_profile or plan.sources_profile
    files = _files(lock, options)
    base = fetch_locked_base_image(app, lock, store, profile) if options.includes_base_image else ()
    _remember(app, lock, store)
    missing = [file.size for file in files if not store.is_intact(file.sha256, file.size)]
    if not missing:
        whole = sum(file.size for file in files)
        return (*base, *files), FetchResult(present=len(files), present_bytes=whole, by_mirror={})
    app.say(f"fetching {len(missing)} files, {size_text(sum(missing))}")
    with show_fetch_progress(app, sum(missing)) as on_progress:
        report = fetch_artifacts(
            files, create_file_locator(app, profile, files), store, on_progress, target=plan.target, jobs=options.jobs
        )
    return (*base, *files), report


def _export(
    app: App, lock: Lock, files: Sequence[Artifact], store: ObjectStore, place: Path | ImageReference | None
) -> None:
    files = [file if file.size else replace(file, size=store.path(file.sha256).stat().st_size) for file in files]
    plan = create_oci_export_documents(lock.target, lock.to_json_text(), files)
    app.say(f"exporting {len(files)} files to {place}")
    if isinstance(place, Path):
        export_to_directory(plan, files, store, place)
    elif place:
        export_to_registry(plan, files, store, place, read_network_settings().ca_bundle)


def _import(
    app: App, lock: Lock, store: ObjectStore, place: Path | ImageReference | None, options: FetchOptions
) -> None:
    done = _imported(app, store, place)
    if done.lock_json != lock.to_json_text().encode():
        app.say(f"the export was made from another lock of {lock.target}")
    if done.damaged_files:
        raise WorkFailed(
            _("the export has damaged files: {count}; whole and in the store: {taken}{bad}").format(
                count=len(done.damaged_files),
                taken=done.imported_files + done.present_files,
                bad="".join(f"\n  {line}" for line in done.damaged_files),
            ),
            where=str(place),
            next_step=_("export again and repeat the import, which takes only what is missing"),
        )
    base = _base(lock, store, options)
    files = (*base, *_files(lock, options))
    _remember(app, lock, store)
    missing = [file.file for file in files if not store.is_intact(file.sha256, file.size)]
    if missing or ("@" in lock.base and not base and options.includes_base_image):
        enough = options.includes_base_image and all(
            store.is_intact(file.sha256, file.size) for file in list_inplace_artifacts(lock)
        )
        which = " --place here" * options.inplace_only
        partly = f"; it has what rlbox apply takes: rlbox fetch {lock.target} --place here --import {place}"
        raise WorkFailed(
            _("the export does not hold: {missing}").format(missing=", ".join(missing) or lock.base),
            where=str(place),
            next_step=_("make it from the same lock: rlbox fetch {target}{which} --export{partly}").format(
                target=lock.target, which=which, partly=partly * enough
            ),
        )
    data = {
        "target": lock.target,
        "store": str(store.root),
        "imported": done.imported_files,
        "present": done.present_files,
    }
    app.result(data, f"{lock.target}  {len(files)} files: {done.present_files} present, {done.imported_files} imported")
    app.say(_next(lock.target, options))


def _next(target: str, options: FetchOptions) -> str:
    return f"next: rlbox apply {target} --offline" if options.inplace_only else f"next: rlbox build {target} --hermetic"


def _imported(app: App, store: ObjectStore, place: Path | ImageReference | None) -> ImportResult:
    def on_file(title: str) -> None:
        if app.verbosity > 0:
            app.say(title)

    if isinstance(place, ImageReference):
        return import_from_registry(place, store, read_network_settings().ca_bundle, on_file)
    return import_from_directory(place or Path(), store, on_file)


def _tell(app: App, name: str, store: ObjectStore, report: FetchResult, options: FetchOptions) -> None:
    exported = options.export_to
    whole = size_text(report.present_bytes + report.fetched_bytes)
    lines = [
        f"{name}  {report.present + report.fetched} files, {whole}: "
        f"{report.present} present, {report.fetched} fetched ({size_text(report.fetched_bytes)})"
    ]
    lines += [f"  {size_text(count):>9} from {mirror}" for mirror, count in report.by_mirror.items()]
    lines += [f"exported to {exported}"] if exported else []
    data = {"target": name, "store": str(store.root), **asdict(report), "exported": exported}
    app.result(data, "\n".join(lines))
    app.say(_next(name, options))
