"""What a build starts from: the locked files that it carries, its context folder, its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from rlbox.amounts import decimal_size_text
from rlbox.app import App
from rlbox.artifacts.base_image import (
    fetch_base_image_if_any,
    link_or_reuse_cached_oci_layout,
    list_next_missing_base_files,
)
from rlbox.artifacts.fetch import (
    create_missing_files_error,
    fetch_missing_with_progress,
    refuse_missing_compiled_wheels,
    require_disk_space,
)
from rlbox.artifacts.locator import load_profile_without_dead_mirrors
from rlbox.artifacts.mirrors import plan_pip_uv_env_and_local_wheels
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.artifacts.profile import load_profile
from rlbox.engine.connection import read_docker_server_version_or_raise
from rlbox.errors import EngineError
from rlbox.i18n import _
from rlbox.image.bootstrap import (
    cached_rootfs_archive_path,
    deb_path_basename,
    ensure_cached_rootfs_archive,
    require_mmdebstrap,
)
from rlbox.image.buildkit import (
    MIN_ENGINE_FOR_LINKED_COPIES,
    BuildOptions,
    BuildRequest,
    adapt_dockerfile_to_engine_and_base_context,
)
from rlbox.image.context import (
    compute_build_digest,
    list_hashed_context_entries,
    list_locked_context_entries,
    list_unhashed_rlbox_files,
    sync_build_context,
)
from rlbox.image.names import tag_to_file_name
from rlbox.image.plan import (
    BUILD_LABEL,
    FORCED_LABEL,
    ImagePlan,
    layer_dir_relative_to_wheels,
    map_git_http_names_to_context_paths,
    plan_python_layers,
)
from rlbox.system.files import cache_path
from rlbox.system.network_settings import read_pip_and_proxy_settings
from rlbox.target.artifact import Artifact, list_artifacts_without_compile_inputs
from rlbox.target.target import load_target


class BuildContextWriter:
    """What one build starts from: lock, store, machine and sources profile, and what they give to its context.

    A hermetic build carries every locked file, any other only those that a step cannot verify by itself or that this
    machine holds anyway.
    """

    def __init__(self, app: App, plan: ImagePlan, options: BuildOptions) -> None:
        self._app, self._plan, self._options = app, plan, options
        self._site = read_pip_and_proxy_settings()
        self._local = {unquote(name) for names in self._site.wheels_by_find_links_folder.values() for name in names}
        self._lock = plan.require_current_lock()
        self._store = ObjectStore(resolve_store_dir(None), seals=not app.dry_run)
        self._sources = options.sources_profile or plan.sources_profile

    def fetch_and_write_context(self, override_directory: Path | None = None) -> BuildRequest:
        """Write the build context, fetching and bootstrapping what it carries; return how the build is run.

        A hermetic one fetches nothing: `WorkFailed` names what the store lacks.
        """
        plan, options, lock = self._plan, self._options, self._lock
        self._fetch()
        carried = list_locked_context_entries(
            plan, self._rootfs(), self._wheels(), self._parts(), mark_wheels_complete=options.hermetic
        )
        run = self._run(override_directory or cache_path("contexts", tag_to_file_name(plan.tag)), self._base())
        base = lock.base if run.base_image_context_url else ""
        dockerfile = {
            "Dockerfile": adapt_dockerfile_to_engine_and_base_context(plan.context_files["Dockerfile"], _engine(), base)
        }
        entries = {**list_hashed_context_entries(plan), **list_unhashed_rlbox_files()}
        sync_build_context({**entries, **carried, **dockerfile}, run.context_dir)
        if options.hermetic:
            return run
        files = list_artifacts_without_compile_inputs(lock)
        profile = load_profile_without_dead_mirrors(self._app, self._sources, self._site, files)
        return replace(run, step_env=plan_pip_uv_env_and_local_wheels(plan.torch_groups, self._site, profile).env)

    def check_and_plan_request_for_dry_run(self) -> BuildRequest:
        app, plan, missing = self._app, self._plan, self._missing()
        if missing:
            with app.collecting_refusals_if_dry_run("store"):
                self._refuse(missing)
        if missing and not self._options.hermetic:
            with app.collecting_refusals_if_dry_run("store"):
                require_disk_space(self._store, missing)
            size = decimal_size_text(sum(file.size for file in missing))
            app.dry.steps_before.append(_("{count} files are fetched, {size}").format(count=len(missing), size=size))
            app.add_dry_run_unchecked(
                _("a dry run asks no network"), _("sources {profile}").format(profile=self._sources)
            )
        if plan.rootfs_checksum and not cached_rootfs_archive_path(plan.rootfs_checksum).exists():
            with app.collecting_refusals_if_dry_run("mmdebstrap"):
                require_mmdebstrap()
            text = _("the base is made from its {count} apt packages")
            app.dry.steps_before.append(text.format(count=len(self._lock.debs)))
        base = None
        with app.collecting_refusals_if_dry_run("engine"):
            base = self._base()
        return self._run(cache_path("contexts", tag_to_file_name(plan.tag)), base)

    def _run(self, folder: Path, base: str | None) -> BuildRequest:
        options = self._options
        return BuildRequest(
            context_dir=folder,
            tag=self._plan.tag,
            epoch=self._plan.epoch,
            labels={
                BUILD_LABEL: compute_build_digest(list_hashed_context_entries(self._plan), self._plan.epoch),
                **({FORCED_LABEL: options.forced_stack_conflict} if options.forced_stack_conflict else {}),
            },
            step_env={},
            network_settings=self._site,
            use_cache=not (options.no_cache or options.verify),
            network="none" if options.hermetic else self._plan.network,
            base_image_context_url=base,
        )

    def _rootfs(self) -> Path | None:
        checksum = self._plan.rootfs_checksum
        if checksum and not cached_rootfs_archive_path(checksum).exists():
            self._app.print_status(
                _("making the base from its {count} apt packages").format(count=len(self._lock.debs))
            )
        return ensure_cached_rootfs_archive(self._lock, checksum, self._plan.epoch, self._store) if checksum else None

    def _parts(self) -> Mapping[str, Path]:
        """Return git trees, single files and apt packages for a base image: path in the context to the file."""
        lock, store = self._lock, self._store
        places = map_git_http_names_to_context_paths(lock)
        parts = {places[tree.name]: store.path(tree.sha256) for tree in lock.git}
        parts |= {places[file.name]: store.path(file.sha256) for file in lock.http}
        if "@" in lock.base:
            parts |= {f"debs/{deb_path_basename(deb)}": store.path(deb.sha256) for deb in lock.debs}
        return parts

    def _base(self) -> str | None:
        """Return where BuildKit gets the base image, as a named context; None for a bootstrapped base.

        A profile with mirrors of registries gets it through the store, as a hermetic build does: it fails over, and
        the bytes are verified. A named context even for what the engine pulls itself: only then the times in the
        image's history are the same both ways. Old engines know no named contexts; the Dockerfile names the image for
        them.
        """
        app, lock, store = self._app, self._lock, self._store
        if "@" not in lock.base:
            return None
        from_store = self._options.hermetic or load_profile(app.project, self._sources).has_rules_for("oci")
        if (_engine() or MIN_ENGINE_FOR_LINKED_COPIES) < MIN_ENGINE_FOR_LINKED_COPIES:
            if from_store:
                other = "without --hermetic" if self._options.hermetic else _("with --sources direct")
                raise EngineError(
                    _("this engine cannot build on a base image from the store"),
                    next_step=_("use Docker 23 or newer, or build {other}").format(other=other),
                )
            return None
        if not from_store:
            return f"docker-image://{lock.base}"
        if self._options.hermetic and (missing := list_next_missing_base_files(store, lock.base, lock.platform)):
            raise create_missing_files_error(missing, store, self._plan.target)
        if app.dry_run:
            return f"oci-layout://FOLDER@{lock.base.rpartition('@')[2]}"
        fetch_base_image_if_any(app, lock, store, self._sources)
        layout = link_or_reuse_cached_oci_layout(lock.base, lock.platform, store)
        return f"oci-layout://{layout}@{lock.base.rpartition('@')[2]}"

    def _fetch(self) -> None:
        app, plan, store = self._app, self._plan, self._store
        if missing := self._missing():
            self._refuse(missing)
            probe_files = list_artifacts_without_compile_inputs(self._lock)
            fetch_missing_with_progress(app, missing, store, self._sources, plan.target, probe_files=probe_files)

    def _refuse(self, missing: list[Artifact]) -> None:
        refuse_missing_compiled_wheels(missing, self._store, self._plan.target)
        if self._options.hermetic:
            raise create_missing_files_error(missing, self._store, self._plan.target)

    def _missing(self) -> list[Artifact]:
        """Return what the build carries and the store has not.

        It carries all; or uv, what no step of a Dockerfile verifies itself, what lies in pip's `find-links` folders.
        """
        plan, store, wanted = self._plan, self._store, list_artifacts_without_compile_inputs(self._lock)
        everything, local = self._options.hermetic, self._local
        kinds, uv = ("apt", "compiled", "git", "http"), ("uv", "runtime")
        carried = [
            file
            for file in wanted
            if everything or file.kind in kinds or (file.name, file.group) == uv or file.file in local
        ]
        if plan.rootfs_checksum and cached_rootfs_archive_path(plan.rootfs_checksum).exists():
            carried = [artifact for artifact in carried if artifact.kind != "apt"]
        return [artifact for artifact in carried if not store.verify_and_mark_if_intact(artifact.sha256, artifact.size)]

    def _wheels(self) -> Mapping[str, Path]:
        lock, store, everything = self._lock, self._store, self._options.hermetic
        layers = plan_python_layers(load_target(self._app.project, self._plan.target).target, lock)
        rows = [("runtime", package) for package in lock.runtime.packages]
        rows += [("uv", package) for package in lock.runtime.packages if package.name == "uv"]
        rows += [(layer_dir_relative_to_wheels(layer.name), package) for layer in layers for package in layer.packages]
        found: dict[str, Path] = {}
        for folder, package in rows:
            is_carried = folder == "uv" or not package.is_from_python_or_torch_index
            if everything or is_carried or package.file in self._local:
                found[f"{folder}/{package.file}"] = store.path(package.sha256)
                if everything and not package.is_wheel:
                    found |= {f"{folder}/{tool.file}": store.path(tool.sha256) for tool in lock.build.packages}
        return found


def _engine() -> tuple[int, ...]:
    try:
        return read_docker_server_version_or_raise()
    except EngineError:  # a context is written for whatever engine builds it
        return ()
