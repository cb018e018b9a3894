"""What a run is made of: specs and their digest, programs, secrets, the user's source, its plan in a container, ports.

Ports are looked at before its first stage, so that nobody waits for two stages to learn that one is taken.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.version import Version

from rlbox.app import App
from rlbox.diagnose.cause import make_port_conflict_cause
from rlbox.diagnose.first_fatal import SIGNATURES_FILE
from rlbox.errors import MachineError, SpecError
from rlbox.fixes.fix import Fix
from rlbox.fixes.render import render_signatures_json
from rlbox.i18n import _
from rlbox.job.job import FrameworkSource, Job
from rlbox.job.names import SOURCE_PARAM
from rlbox.job.param import Scalar
from rlbox.job.params import ParamValues
from rlbox.job.plan import ProcessPaths, RunPlan, container_source_path_or_empty, plan_run
from rlbox.record.source_tree import SourceTree, describe_source_record, probe_source_tree
from rlbox.run.backend import format_run_command_without_params
from rlbox.run.data_disk import resolve_data_dir_or_default
from rlbox.system.identity import get_user_name_or_uid
from rlbox.system.ports import describe_port_holder_unless_free
from rlbox.values import VENV, Secret

SPEC = "spec/"


def collect_spec_texts_by_path(app: App, job: Job, target: str, fixes: Iterable[Fix]) -> dict[str, str]:
    files = {"target.toml": app.project.require_target_file(target), "job.toml": app.project.require_job_file(job.name)}
    locks = {
        "lock.json": app.project.own_or_shipped_lock_file(target),
        "hub.lock.json": app.project.own_or_shipped_hub_lock_file("target", target),
        "job.lock.json": app.project.own_or_shipped_hub_lock_file("job", job.name),
    }
    files |= {name: path for name, path in locks.items() if path.exists()}
    texts = {f"{SPEC}{name}": path.read_text(encoding="utf-8") for name, path in files.items()}
    return texts | {SIGNATURES_FILE: render_signatures_json(fixes)}


def compute_specs_digest(text_by_path: Mapping[str, str]) -> str:
    specs = {name: text for name, text in text_by_path.items() if name.startswith(SPEC)}
    return hashlib.sha256(json.dumps(specs, sort_keys=True).encode()).hexdigest()


def find_job_programs_dir(app: App, job: Job) -> Path | None:
    folder = app.project.require_job_file(job.name).with_suffix("")
    return folder if folder.is_dir() else None


def require_job_secrets_from_env_and_files(
    app: App,
    job: Job,
    target: str,
    data_option: str | None,
    env_file: str | None,
    params_that_logs_show: Mapping[str, Scalar],
) -> dict[str, Secret]:
    """Return the secrets of a job; `SpecError` when a required one is nowhere, or one is too weak to be masked."""
    if not (job.secrets or job.optional_secrets or env_file):
        return {}
    from rlbox.fixes.catalogue import load_fix_catalogue
    from rlbox.fixes.render import list_secret_alias_groups
    from rlbox.secrets.lookup import find_secrets_rejecting_weak

    folders = (app.project.folder, resolve_data_dir_or_default(app, target, data_option))
    with app.collecting_refusals_if_dry_run("secrets"):
        return find_secrets_rejecting_weak(
            job.secrets,
            job.optional_secrets,
            overriding_env_file=Path(env_file) if env_file else None,
            fallback_env_file_dirs=folders,
            environ=os.environ,
            aliases=list_secret_alias_groups(load_fix_catalogue(app.project)),
            logged_texts=(
                *(str(value) for value in params_that_logs_show.values()),
                *(job.name, target, *(stage.name for stage in job.stages), *(service.name for service in job.services)),
                *(get_user_name_or_uid(), socket.gethostname()),
            ),
        )
    return {}


def plan_container_run(
    job: Job, values: ParamValues, mount: str, run_id: str, place: str, target: str, secret_names: tuple[str, ...] = ()
) -> RunPlan:
    folder = f"{mount}/runs/{run_id}"
    source = container_source_path_or_empty(str(values.params[SOURCE_PARAM])) if job.source else ""
    paths = ProcessPaths(run=folder, job=f"{folder}/job", data=mount, python=f"{VENV}/bin/python", source=source)
    return plan_run(job, values, paths, run_id=run_id, place=place, target=target, secrets=secret_names)


def require_free_ports(app: App, plan: RunPlan) -> None:
    for service in (service for stage in plan.stages for service in stage.services):
        for name, number in service.ports.items():
            if holder := describe_port_holder_unless_free(number):
                cause = make_port_conflict_cause(name, number, holder)
                with app.collecting_refusals_if_dry_run("ports"):
                    raise MachineError(cause.what, next_step=cause.next_step)


def require_matching_source_if_set(
    app: App, job: Job, values: ParamValues, *, is_local_run: bool, accept_other_version: bool
) -> SourceTree | None:
    """Return the user's tree; `SpecError` where it is not the job's framework in this minor version."""
    if job.source is None or not values.params[SOURCE_PARAM]:
        return None
    with app.collecting_refusals_if_dry_run(SOURCE_PARAM):
        if not is_local_run:
            raise SpecError(
                _("--set {source} is for a run on this machine: other machines do not have {params}").format(
                    source=SOURCE_PARAM, params=values.params[SOURCE_PARAM]
                ),
                next_step=_(
                    "type it on the machine that has the tree and the GPUs, with --place docker or --place here"
                ),
            )
        found = _probe_tree(job.source, Path(str(values.params[SOURCE_PARAM])).expanduser().resolve())
        _check_version(job.name, job.source, found, force=accept_other_version)
        app.print_status(_("source: {tree}").format(tree=describe_source_record(found.to_json())))
        return found
    return None


def probe_plan_source_or_refuse_override(
    app: App, job: Job, plan: RunPlan, set_params: Mapping[str, str]
) -> SourceTree | None:
    """`SpecError`: the tree is gone, or `set_params` name one, and a resumed run keeps its own."""
    had = str(plan.params.get(SOURCE_PARAM, ""))
    if job.source is None:
        return None
    with app.collecting_refusals_if_dry_run(SOURCE_PARAM):
        if SOURCE_PARAM in set_params:
            raise SpecError(
                _("run {run_id} keeps the source that it was started with: {had}").format(
                    run_id=plan.run_id, had=had or _("the installed package")
                ),
                next_step=_("start a new run: {new_run} --set {source}={settings}").format(
                    new_run=format_run_command_without_params(plan),
                    source=SOURCE_PARAM,
                    settings=shlex.quote(set_params[SOURCE_PARAM]),
                ),
            )
        return _probe_tree(job.source, Path(had)) if had else None
    return None


def _probe_tree(table: FrameworkSource, folder: Path) -> SourceTree:
    package = table.package
    if not (folder / package).is_dir():
        fault = _("the folder has no package {package}") if folder.is_dir() else _("there is no such folder")
        raise SpecError(
            _("--set {source}: {what}").format(source=SOURCE_PARAM, what=fault.format(package=package)),
            where=str(folder),
            next_step=_("--set {source}=DIR, a work tree with the folder {package}").format(
                source=SOURCE_PARAM, package=package
            ),
        )
    return probe_source_tree(folder, package)


def _check_version(job: str, table: FrameworkSource, found: SourceTree, *, force: bool) -> None:
    known, wanted = found.version, table.version
    if known and Version(known).release[:2] != Version(wanted).release[:2] and not force:
        raise SpecError(
            _("--set {source}: it is {package} {known}, and job {job} is written for {wanted}").format(
                source=SOURCE_PARAM, package=table.package, known=known, job=job, wanted=wanted
            ),
            where=found.folder,
            next_step=_("name a tree of {package} {wanted}, or override it with --force, which is recorded").format(
                package=table.package, wanted=wanted
            ),
        )
