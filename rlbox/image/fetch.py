"""What `rlbox fetch` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rlbox.amounts import decimal_size_text
from rlbox.app import App
from rlbox.artifacts.base_image import fetch_locked_base_image, list_base_files_in_stored_manifests
from rlbox.artifacts.fetch import (
    FetchResult,
    fetch_missing_files,
    format_group_sizes,
    measure_groups,
    require_compiled_wheels,
    require_disk_space,
)
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.artifacts.store_upkeep import record_fetched_lock
from rlbox.errors import WorkFailed
from rlbox.i18n import _
from rlbox.image.plan import ImagePlan, load_image_plan
from rlbox.system.files import require_writable_or_creatable_directory
from rlbox.target.artifact import Artifact, list_inplace_artifacts, list_install_artifacts
from rlbox.target.lock import Lock


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """What the command line asked for; `inplace_only`: what `rlbox apply` takes, and no more."""

    inplace_only: bool = False
    sources_profile: str = ""
    store_dir: str | None = None
    jobs: int = 8
    export_dir: Path | None = None
    import_dir: Path | None = None


def fetch_target_files(app: App, target_name: str, options: FetchOptions) -> int:
    plan = load_image_plan(app.project, target_name)
    lock = plan.require_current_lock()
    store = ObjectStore(resolve_store_dir(options.store_dir), seals=not app.dry_run)
    if options.export_dir:
        with app.collecting_refusals_if_dry_run("export"):
            require_writable_or_creatable_directory(options.export_dir, "another with --export")
    if app.dry_run:
        return _look(app, plan, lock, store, options)
    if options.import_dir:
        _import(app, lock, store, options.import_dir, options)
    else:
        files, report = _fetch(app, plan, lock, store, options)
        if options.export_dir:
            app.print_status(f"exporting {len(files)} files to {options.export_dir}")
            _export_objects(files, store, options.export_dir)
        _tell(app, target_name, store, report, options)
    return 0


def _files(lock: Lock, options: FetchOptions) -> tuple[Artifact, ...]:
    files = list_inplace_artifacts(lock) if options.inplace_only else list_install_artifacts(lock)
    return tuple({file.sha256: file for file in reversed(files)}.values())[::-1]


def _base(lock: Lock, store: ObjectStore, options: FetchOptions) -> tuple[Artifact, ...]:
    return () if options.inplace_only else list_base_files_in_stored_manifests(store, lock.base, lock.platform)


def _remember(app: App, lock: Lock, store: ObjectStore) -> None:
    record_fetched_lock(store, lock.target, app.project.own_or_shipped_lock_file(lock.target))


def _look(app: App, plan: ImagePlan, lock: Lock, store: ObjectStore, options: FetchOptions) -> int:
    base = _base(lock, store, options)
    files = (*base, *_files(lock, options))
    rows = measure_groups(files, store.is_intact)
    if unknown := "@" in lock.base and not base and not options.inplace_only:
        app.record_as_unchecked("its manifest is not in the store", f"files of the base image {lock.base}")
    missing = [file for file in files if not store.is_intact(file.sha256, file.size)]
    if options.import_dir:
        would = f"import {options.import_dir}"
        with app.collecting_refusals_if_dry_run("export"):
            _open_export(options.import_dir)
    else:
        would = f"fetch {len(missing)} files" + " and the base image" * unknown
        with app.collecting_refusals_if_dry_run("store"):
            require_compiled_wheels(missing, store, plan.target)
    with app.collecting_refusals_if_dry_run("store"):
        require_disk_space(store, missing)
    if not missing and not unknown:
        would = "fetch nothing: the store holds it all"
    elif not options.import_dir:
        app.record_as_unchecked(
            "a dry run asks no network", f"sources {options.sources_profile or plan.sources_profile}"
        )
    would += f", and export it to {options.export_dir}" if options.export_dir else ""
    data = [asdict(row) for row in rows]
    facts = {"target": lock.target, "store": str(store.root), "groups": data[:-1], "total": data[-1]}
    return app.planned(facts, format_group_sizes(rows), would)


def _fetch(
    app: App, plan: ImagePlan, lock: Lock, store: ObjectStore, options: FetchOptions
) -> tuple[tuple[Artifact, ...], FetchResult]:
    profile = options.sources_profile or plan.sources_profile
    files = _files(lock, options)
    base = () if options.inplace_only else fetch_locked_base_image(app, lock, store, profile)
    _remember(app, lock, store)
    report = fetch_missing_files(app, files, store, profile, plan.target, jobs=options.jobs)
    return (*base, *files), report


def _export_objects(files: Sequence[Artifact], store: ObjectStore, directory: Path) -> None:
    export = ObjectStore(directory)
    for file in files:
        if not export.is_intact(file.sha256, file.size):
            store.link_object(file.sha256, export.path(file.sha256))


def _open_export(directory: Path) -> ObjectStore:
    if not (directory / "objects/sha256").is_dir():
        raise WorkFailed(
            _("there is no export of rlbox"),
            where=str(directory),
            next_step=_("rlbox fetch TARGET --export DIR on the machine that has network"),
        )
    return ObjectStore(directory, seals=False)


def _import(app: App, lock: Lock, store: ObjectStore, directory: Path, options: FetchOptions) -> None:
    export = _open_export(directory)
    present, imported, damaged = 0, 0, []
    for digest in export.list_digests():
        if store.is_intact(digest):
            present += 1
        elif store.import_if_sha256_matches(export.path(digest), digest) == digest:
            imported += 1
        else:
            damaged.append(digest)
    files = (*_base(lock, store, options), *_files(lock, options))
    if damaged:
        names = {file.sha256: file.file for file in files}
        raise WorkFailed(
            _("the export has damaged files: {files}").format(
                files=", ".join(names.get(digest, digest[:12]) for digest in damaged)
            ),
            where=str(directory),
            next_step=_("export again and repeat the import, which takes only the missing parts"),
        )
    _remember(app, lock, store)
    missing = [file.file for file in files if not store.is_intact(file.sha256, file.size)]
    if "@" in lock.base and not options.inplace_only and not _base(lock, store, options):
        missing.append(lock.base)
    if missing:
        place = " --place here" if options.inplace_only else ""
        raise WorkFailed(
            _("the export does not hold: {missing}").format(missing=", ".join(missing)),
            where=str(directory),
            next_step=_("make it from the same lock: rlbox fetch {target}{place} --export DIR").format(
                target=lock.target, place=place
            ),
        )
    data = {"target": lock.target, "store": str(store.root), "imported": imported, "present": present}
    app.result(data, f"{lock.target}  {present + imported} files: {present} present, {imported} imported")
    app.print_status(_next(lock.target, options))


def _next(target: str, options: FetchOptions) -> str:
    return f"next: rlbox apply {target} --offline" if options.inplace_only else f"next: rlbox build {target} --hermetic"


def _tell(app: App, name: str, store: ObjectStore, report: FetchResult, options: FetchOptions) -> None:
    exported = str(options.export_dir) if options.export_dir else None
    whole = decimal_size_text(report.present_bytes + report.fetched_bytes)
    lines = [
        f"{name}  {report.present + report.fetched} files, {whole}: "
        f"{report.present} present, {report.fetched} fetched ({decimal_size_text(report.fetched_bytes)})"
    ]
    lines += [f"  {decimal_size_text(count):>9} from {mirror}" for mirror, count in report.by_mirror.items()]
    lines += [f"exported to {exported}"] if exported else []
    data = {"target": name, "store": str(store.root), **asdict(report), "exported": exported}
    app.result(data, "\n".join(lines))
    app.print_status(_next(name, options))
