"""What a target is brought with: packages and files, from the store or through it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from rlbox.app import App
from rlbox.artifacts.fetch import create_missing_files_error, fetch_missing_with_progress
from rlbox.artifacts.locator import load_profile_without_dead_mirrors
from rlbox.artifacts.mirrors import plan_pip_uv_env_and_local_wheels
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.config.project import PACKAGE, Project
from rlbox.doctor.fix_checks import INSTALL_DIR_VARIABLE, run_fix_checks_retrying_failed, select_fix_checks
from rlbox.engine.data_disk import ensure_usable_data_dir_creating_default
from rlbox.errors import MachineError, RlboxError
from rlbox.fixes.catalogue import load_target_with_fix_apt_packages
from rlbox.fixes.conditions import map_packages_to_version_or_empty
from rlbox.fixes.render import render_fixes_or_raise_refusal
from rlbox.i18n import _
from rlbox.image.plan import ImagePlan
from rlbox.job.job import load_target_ports_by_job_dot_port
from rlbox.provision.apply import (
    EMPTY_RESULT,
    ApplyOptions,
    ApplyResult,
    PackageSource,
    apply_plan_steps_skipping_unavailable_apt,
    require_disk_space_for_venv,
    uninstall_and_describe_leftovers,
)
from rlbox.provision.desired import (
    DesiredState,
    list_target_apt_packages,
    plan_desired_state,
    replace_mount_path_in_disk_and_env,
)
from rlbox.provision.layout import Layout
from rlbox.provision.locations import (
    find_applied_or_default_layout,
    forget_layout_prefix_if_saved,
    save_layout_prefix_if_any,
    wait_and_hold_layout_lock_unless_dry_run,
)
from rlbox.provision.plan import ApplyPlan, FixCheckCountAndFailures, PathChange, plan_apply_skipping_conflicts
from rlbox.provision.probe import (
    list_installed_apt_packages_or_empty,
    probe_machine,
    read_install_record,
    require_writable_prefix_and_not_in_image,
)
from rlbox.provision.shell_environment import keep_allowed_variables_and_system_path
from rlbox.secrets.masks import is_literal_secret
from rlbox.system.command import run_command
from rlbox.system.json_files import read_json_object_or_empty
from rlbox.system.network_settings import read_pip_and_proxy_settings
from rlbox.system.process_table import read_environ_or_empty
from rlbox.target.artifact import Artifact, list_artifacts_without_compile_inputs
from rlbox.target.lock import Lock
from rlbox.target.target import Target
from rlbox.values import LOCK_IN_IMAGE, VENV, Command


@dataclass(frozen=True, kw_only=True)
class HostTarget:
    desired: DesiredState
    lock: Lock
    image: ImagePlan
    options: ApplyOptions


def _check_supplies_in_dry_run(app: App, prepared: HostTarget, plan: ApplyPlan) -> None:
    store, lock, options = ObjectStore(resolve_store_dir(None), seals=False), prepared.lock, prepared.options
    groups = {group.name for group in (*lock.groups, lock.build)} if "environment" in plan.step_kinds else set()
    groups |= {"git", "http"} if "part" in plan.step_kinds else set()
    missing: list[Artifact] = []
    with app.collecting_refusals_if_dry_run("store"):
        __, missing = _files(lock, groups, store, options)
    if missing or "packages" in plan.step_kinds:
        sources = _("sources {profile}").format(profile=_profile(prepared))
        app.add_dry_run_unchecked(_("a dry run asks no network"), sources)


def _find_packages(app: App, prepared: HostTarget, store: ObjectStore) -> PackageSource:
    """Return where the packages come from: the store when it holds all, else the profile's index or mirror.

    What no index has, wheels by address and compiled ones, is taken from the store either way.
    """
    lock, options = prepared.lock, prepared.options
    files, missing = _files(lock, {group.name for group in lock.groups} | {lock.build.name}, store, options)
    if not missing:
        return PackageSource(
            store_wheel_by_file_name={file.file: store.path(file.sha256) for file in files}, is_offline=True
        )
    site, profile = read_pip_and_proxy_settings(), _profile(prepared)
    if own := [file for file in files if file.kind in ("compiled", "http")]:
        fetch_missing_with_progress(app, own, store, profile, lock.target)
    sources = plan_pip_uv_env_and_local_wheels(
        prepared.image.torch_groups, site, load_profile_without_dead_mirrors(app, profile, site, files)
    )
    trust = {"SSL_CERT_FILE": site.ca_bundle} if site.ca_bundle else {}
    folders = tuple(sorted({wheel.rpartition("/")[0] for wheel in sources.local_wheel_paths}))
    return PackageSource(
        uv_env={**sources.env, **trust},
        wheel_dirs=folders,
        store_wheel_by_file_name={file.file: store.path(file.sha256) for file in own},
    )


def _profile(prepared: HostTarget) -> str:
    return prepared.options.sources_profile or os.environ.get("RLBOX_SOURCES") or prepared.image.sources_profile


def _files(
    lock: Lock, groups: set[str], store: ObjectStore, options: ApplyOptions
) -> tuple[list[Artifact], list[Artifact]]:
    """Return the lock's files of some groups, and which of them the store lacks; offline it may lack none."""
    files = [file for file in list_artifacts_without_compile_inputs(lock) if file.group in groups]
    missing = [file for file in files if not store.verify_and_mark_if_intact(file.sha256, file.size)]
    if not (missing and options.offline):
        return files, missing
    raise create_missing_files_error(missing, store, f"{lock.target} --place here")


# Without bytecode each of vLLM's three processes compiles all that it imports: minutes.
_BYTECODE = "PYTHONPYCACHEPREFIX"
_DRIVER = "libcuda.so.1"
_LIMITS = "RLBOX_LIMITS"
"""In the ENV of every image of rlbox."""
_CHECKS_S = 60.0
_USUAL_PYTHON = "/usr/bin/python3"
"""The interpreter of a spec that names none."""


def prepare_host_target(app: App, image: ImagePlan, layout: Layout, options: ApplyOptions | None = None) -> HostTarget:
    lock = image.require_current_lock()
    loaded = load_target_with_fix_apt_packages(app.project, image.target)
    if loaded.target.base.holds:
        raise MachineError(
            _("target {target} takes {packages} from its base image, which only Docker unpacks").format(
                target=image.target, packages=", ".join(loaded.target.base.holds)
            ),
            where="base.holds",
            next_step=_("run it with Docker, or apply a target whose [[stack]] has these packages"),
        )
    target = replace_mount_path_in_disk_and_env(loaded.target, layout.data_dir)
    baked = render_fixes_or_raise_refusal(loaded.all_fixes, target, map_packages_to_version_or_empty(target, lock))
    ports = load_target_ports_by_job_dot_port(Project(folder=app.project.roots[-1]), image.target)
    absent = frozenset(list_target_apt_packages(target)) - list_installed_apt_packages_or_empty(
        list_target_apt_packages(target)
    )
    options, record = options or ApplyOptions(), read_install_record(layout)
    if record and not options.python_path:
        options = replace(options, python_path=record.python)
    interpreter = require_venv_python_or_version(target, options.python_path)
    desired = plan_desired_state(
        target, lock, baked, image, layout, ports, sys.executable, absent, interpreter=interpreter
    )
    return HostTarget(desired=desired, lock=lock, image=image, options=options)


def require_venv_python_or_version(target: Target, user_python: str) -> str:
    """Return the interpreter that is named, or that of the spec, else a version, of which any will do."""
    path, wanted = user_python or target.python.interpreter, target.python.version
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        outcome = run_command(Command(argv=(path, "-I", "-c", script), timeout_s=60))
        version = outcome.stdout.strip() if outcome.ok else ""
        fault = _("it is Python {version}").format(version=version) if version else _("it is not a Python interpreter")
    except RlboxError as error:
        version, fault = "", error.what
    if version == wanted:
        return path
    if path == _USUAL_PYTHON and not user_python:
        return wanted  # the system's is another: any of that version will do
    raise MachineError(
        _("target {target} wants Python {version}: {why}").format(target=target.name, version=wanted, why=fault),
        where=path,
        next_step=_("name another with --python FILE")
        if user_python
        else _("correct python.interpreter, or give --python FILE"),
    )


def require_writable_prefix_probe_and_plan(prepared: HostTarget, apt_unavailable_reason: str) -> ApplyPlan:
    require_writable_prefix_and_not_in_image(prepared.desired.layout)
    return plan_apply_skipping_conflicts(prepared.desired, probe_machine(prepared.desired, apt_unavailable_reason))


def fetch_apply_and_save_prefix_already_locked(app: App, prepared: HostTarget, plan: ApplyPlan) -> ApplyResult:
    def on_step(step: PathChange) -> None:
        if step.kind not in ("file", "link") or app.verbosity > 0:
            app.print_status(step.describe())

    store, source = ObjectStore(resolve_store_dir(None)), PackageSource()
    if "environment" in plan.step_kinds:
        require_disk_space_for_venv(prepared.desired)
        source = _find_packages(app, prepared, store)
    if "part" in plan.step_kinds:
        files, __ = _files(prepared.lock, {"git", "http"}, store, prepared.options)
        probe_files = list_artifacts_without_compile_inputs(prepared.lock)
        fetch_missing_with_progress(
            app, files, store, _profile(prepared), prepared.lock.target, probe_files=probe_files
        )
    done = apply_plan_steps_skipping_unavailable_apt(plan, store, source, prepared.options, on_step)
    save_layout_prefix_if_any(prepared.desired.target, prepared.desired.layout)
    return done


@dataclass(frozen=True, kw_only=True)
class StageEnvironment:
    """Where stages run: their interpreter, the words in front of a program that is to have the target's environment
    (they end in an exec, so its process id is theirs), and the environment to start them in."""

    python: Path
    argv_prefix: tuple[str, ...]
    env: Mapping[str, str]


def provision_stage_environment(
    app: App, image: ImagePlan, data_dir: Path, gpu_variables: Mapping[str, str] | None = None
) -> StageEnvironment:
    """Return the place where runs of a target take place on this machine, at the target's lock.

    It is where `rlbox apply` brought the target, else a folder of rlbox's cache; a container of the target's own image
    is one as it stands. The machine's own paths are not changed by a run: that is for `rlbox apply`.
    """
    layout = find_applied_or_default_layout(image.target, data_dir)
    with app.collecting_refusals_if_dry_run("place"):
        if not layout.prefix and read_install_record(layout) is None:
            _check_image(image)
        else:
            _bring(app, image, layout)
    return inherit_stage_environment(layout, gpu_variables)


def _bring(app: App, image: ImagePlan, layout: Layout) -> None:
    prepared = prepare_host_target(app, image, layout)
    with wait_and_hold_layout_lock_unless_dry_run(app, layout):
        plan = require_writable_prefix_probe_and_plan(prepared, _("a run installs none"))
        if plan.steps and not layout.prefix:
            raise _not_at_lock(image.target, layout, plan)
        if plan.steps and app.dry_run:
            text = _("{folder} is brought to the lock of target {target}: {count} changes")
            text = text.format(folder=layout.prefix, target=image.target, count=len(plan.steps))
            app.dry.steps_before.append(text)
            _check_supplies_in_dry_run(app, prepared, plan)
        elif plan.steps:
            app.print_status(
                _("installing the lock of target {target} in {prefix}").format(
                    target=image.target, prefix=layout.prefix
                )
            )
            fetch_apply_and_save_prefix_already_locked(app, prepared, plan)


def inherit_stage_environment(layout: Layout, gpu_variables: Mapping[str, str] | None = None) -> StageEnvironment:
    """Return the environment of a layout at its lock; without `gpu_variables` the shell says which GPUs are seen."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    drivers = [folder for folder in folders if folder and Path(folder, _DRIVER).exists()]
    env = {**keep_allowed_variables_and_system_path(os.environ, drivers), **_of_image(layout), **(gpu_variables or {})}
    if not os.access(Path(layout.venv_python_path).parents[1] / "lib", os.W_OK):
        env[_BYTECODE] = f"{layout.data_dir}/cache/bytecode/here"
    home = str(PACKAGE.parent)
    if home in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # rlbox itself is found by it
        env["PYTHONPATH"] = home
    words = ("sh", f"{layout.rlbox_dir}/libexec/entrypoint.sh")
    return StageEnvironment(
        python=Path(layout.venv_python_path), argv_prefix=words, env={**env, INSTALL_DIR_VARIABLE: layout.rlbox_dir}
    )


def _of_image(layout: Layout) -> dict[str, str]:
    """Return the environment that a container of the target's own image was started with; nothing elsewhere.

    No file of an image says what it has as ENV. Its first process does, or the shell, where a platform starts another.
    Secrets of a platform's account stay out: those that a stage names come from `.env`.
    """
    if layout.prefix or read_install_record(layout) is not None or not Path(LOCK_IN_IMAGE).exists():
        return {}
    first = read_environ_or_empty(1)
    told = first if _LIMITS in first else os.environ
    return {name: text for name, text in told.items() if not is_literal_secret(name, text)}


class ProvisionResult(NamedTuple):
    prepared: HostTarget
    plan: ApplyPlan
    applied: ApplyResult


def provision_target(
    app: App,
    image: ImagePlan,
    layout: Layout,
    options: ApplyOptions,
    *,
    plan_only: bool,
    before_changes: Callable[[int], None] = lambda changes: None,
) -> ProvisionResult:
    """Bring a target to this machine; `before_changes` is called with their number, and what it raises ends all."""
    prepared = prepare_host_target(app, image, layout, options)
    if not plan_only or app.dry_run:
        ensure_usable_data_dir_creating_default(app, Path(layout.data_dir), image.container, 0.0)
    if plan_only:
        plan = require_writable_prefix_probe_and_plan(prepared, options.apt_opt_out_reason)
        if app.dry_run:
            _check_supplies_in_dry_run(app, prepared, plan)
        return ProvisionResult(prepared, plan, EMPTY_RESULT)
    with wait_and_hold_layout_lock_unless_dry_run(app, layout):
        plan, done = require_writable_prefix_probe_and_plan(prepared, options.apt_opt_out_reason), EMPTY_RESULT
        if plan.steps:
            before_changes(len(plan.steps))
        if first := tuple(step for step in plan.steps if step.kind == "packages"):
            # what they bring decides which fixes are there whole
            done = fetch_apply_and_save_prefix_already_locked(app, prepared, replace(plan, steps=first))
            prepared = prepare_host_target(app, image, layout, options)
            plan = require_writable_prefix_probe_and_plan(
                prepared, done.skipped[0].reason if done.skipped else options.apt_opt_out_reason
            )
        if plan.steps:
            rest = fetch_apply_and_save_prefix_already_locked(app, prepared, plan)
            done = ApplyResult(
                steps=(*done.steps, *rest.steps), kept_copies=rest.kept_copies, skipped=(*done.skipped, *rest.skipped)
            )
    return ProvisionResult(prepared, plan, done)


class RemovalResult(NamedTuple):
    state: Literal["unchanged", "laid", "removed"]
    paths: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def uninstall_target_if_applied_refuse_other(app: App, target: str, layout: Layout) -> RemovalResult:
    record = read_install_record(layout)
    if record is None:
        return RemovalResult("unchanged")
    if record.target != target:
        raise MachineError(
            _("target {target} is installed on this machine").format(target=record.target),
            where=layout.record_path,
            next_step=f"{layout.format_apply_command(record.target)} --remove",
        )
    paths = (*record.laid, *record.parts, *([layout.add_prefix(VENV)] if record.environment else []))
    if app.dry_run:
        return RemovalResult("laid", paths)
    with wait_and_hold_layout_lock_unless_dry_run(app, layout):
        notes = uninstall_and_describe_leftovers(
            layout, lambda path: app.print_status(path) if app.verbosity > 0 else None
        )
    forget_layout_prefix_if_saved(target, layout)
    return RemovalResult("removed", paths, notes)


def run_doctor_fix_checks_in_layout(layout: Layout) -> FixCheckCountAndFailures:
    manifest = read_json_object_or_empty(Path(layout.rlbox_dir, "share/fixes.json"), follow_links=True)
    found = run_fix_checks_retrying_failed(
        "doctor", manifest, _CHECKS_S, layout.rlbox_dir, inherit_stage_environment(layout).env
    )
    return FixCheckCountAndFailures(len(select_fix_checks(manifest, "doctor")), found)


def _check_image(image: ImagePlan) -> None:
    found = read_json_object_or_empty(Path(LOCK_IN_IMAGE), follow_links=True)
    text = Path(LOCK_IN_IMAGE).read_bytes()
    if hashlib.sha256(text).hexdigest() != image.lock_checksum:
        raise MachineError(
            _("this machine is a container of an image of target {target!r} by another lock").format(
                target=found.get("target")
            ),
            where=LOCK_IN_IMAGE,
            next_step=_("start a container of {tag}, or run a job of the image's own target").format(tag=image.tag),
        )


def _not_at_lock(target: str, layout: Layout, plan: ApplyPlan) -> MachineError:
    record = read_install_record(layout)
    other = (
        _(", and it was brought there for the data disk {data}").format(data=record.data)
        if record and record.data != layout.data_dir
        else ""
    )
    return MachineError(
        _("this machine is not at the lock of target {target}: {count} changes are due{other}").format(
            target=target, count=len(plan.steps), other=other
        ),
        where=layout.record_path,
        next_step=f"{layout.format_apply_command(target)} --data {layout.data_dir}",
    )
