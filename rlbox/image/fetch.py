"""What `rlbox fetch` does: the files of a target's image and of its models, or the models of a job."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from rlbox.amounts import decimal_size_text
from rlbox.app import App
from rlbox.artifacts.base_image import fetch_base_image_if_any, list_base_files_in_stored_manifests
from rlbox.artifacts.fetch import (
    fetch_missing_with_progress,
    format_group_sizes,
    measure_groups_and_total,
    refuse_missing_compiled_wheels,
    require_disk_space,
)
from rlbox.artifacts.hub_files import (
    HubOwner,
    create_hub_url_finder,
    create_no_hub_entry_error,
    is_job_and_no_target,
    link_and_touch_hub_snapshot,
    load_hub_owner,
)
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.artifacts.store_upkeep import record_fetched_lock
from rlbox.errors import WorkFailed
from rlbox.i18n import _, join
from rlbox.image.plan import ImagePlan, load_image_plan
from rlbox.system.files import require_writable_or_creatable_directory
from rlbox.target.artifact import (
    Artifact,
    list_artifacts_without_compile_inputs,
    list_artifacts_without_os_and_rlbox,
    list_hub_artifacts,
)


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """What the command line asked for; `inplace_only`: what `rlbox apply` takes, and no more."""

    inplace_only: bool = False
    sources_profile: str = ""
    store_dir: str | None = None
    jobs: int = 8
    export_dir: Path | None = None
    import_dir: Path | None = None


def fetch_export_or_import_files(app: App, target_or_job_name: str, options: FetchOptions) -> int:
    """Fetch for a target, or a job where no target has that name."""
    if is_job_and_no_target(app.project, target_or_job_name):
        owner = load_hub_owner(app.project, "job", target_or_job_name)
        if not owner.entries:
            raise create_no_hub_entry_error(app.project, target_or_job_name)
        fetch = _Fetch(app, None, owner, options)
    else:
        fetch = _Fetch(
            app,
            load_image_plan(app.project, target_or_job_name),
            load_hub_owner(app.project, "target", target_or_job_name),
            options,
        )
    if options.export_dir:
        with app.collecting_refusals_if_dry_run("export"):
            require_writable_or_creatable_directory(options.export_dir, "--export")
    if app.dry_run:
        return fetch.report_dry_run()
    if options.import_dir:
        fetch.import_files(options.import_dir)
    else:
        fetch.fetch_and_export_files()
    return 0


class _Fetch:
    def __init__(self, app: App, plan: ImagePlan | None, owner: HubOwner, options: FetchOptions) -> None:
        """`plan` is that of a target's image; without it, the files of a job, `owner`, are fetched."""
        self._app, self._owner, self._options, self._name = app, owner, options, owner.name
        self._lock = lock = plan.require_current_lock() if plan else None
        self._store = ObjectStore(resolve_store_dir(options.store_dir), seals=not app.dry_run)
        self._profile = options.sources_profile or owner.sources_profile
        self._base_image = lock.base if lock and "@" in lock.base and not options.inplace_only else ""
        self._repos = owner.require_locked_repos()
        files: tuple[Artifact, ...] = ()
        if lock:
            files = (
                list_artifacts_without_os_and_rlbox(lock)
                if options.inplace_only
                else list_artifacts_without_compile_inputs(lock)
            )
        # each once, without those that have the bytes of an earlier one
        self._image_files = tuple({file.sha256: file for file in reversed(files)}.values())[::-1]
        self._hub_files = tuple({file.sha256: file for file in list_hub_artifacts(self._repos)}.values())
        self._files = (*self._image_files, *self._hub_files)

    def _list_known_base_files(self) -> tuple[Artifact, ...]:
        if not (self._base_image and self._lock):
            return ()
        return list_base_files_in_stored_manifests(self._store, self._base_image, self._lock.platform)

    def _record(self) -> None:
        if self._lock:
            record_fetched_lock(self._store, self._name, self._app.project.own_or_shipped_lock_file(self._name))
        if self._repos:
            record_fetched_lock(self._store, self._name, self._owner.lock_path)

    def _link_snapshots(self) -> dict[str, str]:
        return {repo.name: str(link_and_touch_hub_snapshot(self._store, repo)) for repo in self._repos}

    def report_dry_run(self) -> int:
        app, options, store = self._app, self._options, self._store
        base = self._list_known_base_files()
        files = (*base, *self._files)
        rows = measure_groups_and_total(files, store.verify_and_mark_if_intact)
        if unknown := bool(self._base_image) and not base:
            app.add_dry_run_unchecked(
                _("its manifest is not in the store"),
                _("files of the base image {image}").format(image=self._base_image),
            )
        missing = [file for file in files if not store.verify_and_mark_if_intact(file.sha256, file.size)]
        if options.import_dir:
            would = _("import {folder}").format(folder=options.import_dir)
            with app.collecting_refusals_if_dry_run("export"):
                _open_export(options.import_dir)
        else:
            would = _("fetch {count} files and the base image") if unknown else _("fetch {count} files")
            would = would.format(count=len(missing))
            with app.collecting_refusals_if_dry_run("store"):
                refuse_missing_compiled_wheels(missing, store, self._name)
        with app.collecting_refusals_if_dry_run("store"):
            require_disk_space(store, missing)
        if not missing and not unknown:
            would = _("fetch nothing: the store holds it all")
        elif not options.import_dir:
            profile = _("sources {profile}").format(profile=self._profile)
            app.add_dry_run_unchecked(_("a dry run asks no network"), profile)
        if options.export_dir:
            would = _("{action}, and export it to {folder}").format(action=would, folder=options.export_dir)
        data = [asdict(row) for row in rows]
        facts = {self._owner.kind: self._name, "store": str(store.root), "groups": data[:-1], "total": data[-1]}
        return app.print_dry_run(facts, format_group_sizes(rows), would)

    def fetch_and_export_files(self) -> None:
        app, store, export_dir, jobs = self._app, self._store, self._options.export_dir, self._options.jobs
        lock = self._lock if self._base_image else None
        base = fetch_base_image_if_any(app, lock, store, self._profile) if lock else ()
        self._record()
        result = fetch_missing_with_progress(app, self._image_files, store, self._profile, self._name, jobs=jobs)
        if self._hub_files:
            finder = create_hub_url_finder(app, self._profile)
            result += fetch_missing_with_progress(
                app, self._hub_files, store, self._profile, self._name, url_finder=finder, jobs=jobs
            )
        snapshots = self._link_snapshots()
        if export_dir:
            files = (*base, *self._files)
            app.print_status(
                _("exporting {count} files to {export_dir}").format(count=len(files), export_dir=export_dir)
            )
            export = ObjectStore(export_dir)
            for file in files:
                if not export.verify_and_mark_if_intact(file.sha256, file.size):
                    store.link_object_replacing_path(file.sha256, export.path(file.sha256))
        size = decimal_size_text(result.present_bytes + result.fetched_bytes)
        lines = [
            _("{target}  {count} files, {size}: {present} present, {fetched} fetched ({fetched_size})").format(
                target=self._name,
                count=result.present + result.fetched,
                size=size,
                present=result.present,
                fetched=result.fetched,
                fetched_size=decimal_size_text(result.fetched_bytes),
            )
        ]
        lines += [
            _("  {size} from {mirror}").format(size=f"{decimal_size_text(count):>9}", mirror=mirror)
            for mirror, count in result.by_mirror.items()
        ]
        lines += [f"  {name}: {folder}" for name, folder in snapshots.items()]
        lines += [_("exported to {folder}").format(folder=export_dir)] if export_dir else []
        exported = str(export_dir) if export_dir else None
        data = {self._owner.kind: self._name, "store": str(store.root), **asdict(result), "exported": exported}
        data |= {"hub": snapshots} if snapshots else {}
        app.output(data, join("\n", lines))
        self._print_next_step()

    def import_files(self, directory: Path) -> None:
        store, export = self._store, _open_export(directory)
        present, imported, damaged = 0, 0, []
        for digest in export.list_digests():
            if store.verify_and_mark_if_intact(digest):
                present += 1
            elif store.add_file_if_matching_return_actual_sha256(export.path(digest), digest) == digest:
                imported += 1
            else:
                damaged.append(digest)
        base = self._list_known_base_files()
        files = (*base, *self._files)
        if damaged:
            names = {file.sha256: file.file for file in files}
            raise WorkFailed(
                _("the export has damaged files: {files}").format(
                    files=", ".join(names.get(digest, digest[:12]) for digest in damaged)
                ),
                where=str(directory),
                next_step=_("export again and repeat the import, which takes only the missing parts"),
            )
        self._record()
        missing = [file.file for file in files if not store.verify_and_mark_if_intact(file.sha256, file.size)]
        missing += [self._base_image] if self._base_image and not base else []
        if missing:
            place = " --place here" if self._options.inplace_only else ""
            raise WorkFailed(
                _("the export does not hold: {missing}").format(missing=", ".join(missing)),
                where=str(directory),
                next_step=_("make it from the same lock: rlbox fetch {target}{place} --export DIR").format(
                    target=self._name, place=place
                ),
            )
        data = {self._owner.kind: self._name, "store": str(store.root), "imported": imported, "present": present}
        snapshots = self._link_snapshots()
        data |= {"hub": snapshots} if snapshots else {}
        text = _("{target}  {count} files: {present} present, {imported} imported").format(
            target=self._name, count=present + imported, present=present, imported=imported
        )
        self._app.output(data, text)
        self._print_next_step()

    def _print_next_step(self) -> None:
        build = "apply {} --offline" if self._options.inplace_only else "build {} --hermetic"
        self._app.print_next("rlbox " + (build if self._lock else "run {}").format(self._name))


def _open_export(directory: Path) -> ObjectStore:
    if not (directory / "objects/sha256").is_dir():
        raise WorkFailed(
            _("there is no export of rlbox"),
            where=str(directory),
            next_step=_("rlbox fetch TARGET --export DIR on the machine that has network"),
        )
    return ObjectStore(directory, seals=False)
