"""Start a new run: what is checked, and what is written down before it starts."""

from __future__ import annotations

import dataclasses
import difflib
import os
import shlex
import socket

from rlbox.amounts import counted
from rlbox.app import App
from rlbox.doctor.gpu_choice import get_gpus_option_or_env
from rlbox.errors import SpecError
from rlbox.fixes.catalogue import load_fixes
from rlbox.fixes.render import list_benign_lines, list_secret_aliases
from rlbox.gate.gate import GateChecker
from rlbox.i18n import _
from rlbox.job.cluster_job import require_cluster
from rlbox.job.job import Job
from rlbox.job.load import load_job, shift_ports
from rlbox.job.params import (
    ParamValues,
    build_override_entry,
    format_param_lines,
    list_params_with_unit,
    resolve_default_params,
    resolve_params,
)
from rlbox.job.plan import RunPlan
from rlbox.planner.fit import (
    FitResult,
    check_fit,
    load_declared_capacity,
    needs_json,
    needs_lines,
    replace_declared_by_measured_capacity,
    require_fit,
    require_user_paths_on_disk,
)
from rlbox.planner.stack_check import require_consistent_stack
from rlbox.planner.suggest import RunCommand
from rlbox.record.run_dir import OVERRIDES_FILE, add_entry_to_overrides_text, create_lock_owner_from_plan, create_run_id
from rlbox.record.run_store import RunStore
from rlbox.record.state import RunState
from rlbox.run.backend import (
    CLUSTER,
    DEFAULT_PLACE,
    Backend,
    RunOptions,
    format_run_command_without_params,
    load_backend,
)
from rlbox.run.data_disk import load_masks_from_environ_and_dotenv
from rlbox.run.exposure import plan_exposure_or_refuse
from rlbox.run.inputs import (
    check_ports,
    collect_run_files,
    compute_specs_digest,
    find_job_programs_dir,
    load_secrets_from_environ_and_files,
    require_matching_source,
)
from rlbox.run.launch import WrittenRun, start_and_follow
from rlbox.system.identity import get_user_name

DONE = ("passed", "skipped")


def start_run(app: App, name: str, options: RunOptions) -> int:
    """Start a new run of the job `name` and follow it; return rlbox's exit code. A dry run ends before it is made.

    Raises `SpecError` when `--from` names a later stage: the earlier ones have not passed in a run that is not there.
    """
    job = shift_ports(load_job(app.project, name), options.shift_ports)
    target = options.target or job.target
    backend = load_backend(options.place, options)
    values = resolve_params(job, options.profiles, options.param_settings)
    if options.place == CLUSTER:
        require_cluster(job)
    forced = require_consistent_stack(app, target, force=options.force)
    values, tree = require_matching_source(
        app, job, values, is_local_run=backend.is_local and options.place != CLUSTER, accept_other_version=options.force
    )
    secrets = load_secrets_from_environ_and_files(app, job, target, options.data, options.env_file, values.params)
    run_store = backend.open_store_or_exec_remotely(app, target, options.data, secrets)
    resolved = backend.adapt_job_if_on_cluster(app, target, job, values)
    job, values = resolved.job, resolved.values
    fit = _check_fit(app, job, values, target, run_store, backend, options)
    prepared = backend.ensure_ready(
        app,
        target,
        run_store,
        get_gpus_option_or_env(options.gpus),
        fit.free_disk_gib_left_to_check if fit and not options.force else None,
        build_missing=options.build_missing,
    )
    fixes = load_fixes(app.project)
    files = collect_run_files(app, job, target, fixes) | (
        tree.render_record_files(load_masks_from_environ_and_dotenv(app, (), secrets)) if tree else {}
    )
    run_id = f"{job.name}-DRY-RUN" if app.dry_run else resolved.preset_run_id or create_run_id(job.name)
    plan = dataclasses.replace(
        set_owner_to_caller(prepared.create_run_plan(job, values, run_id, tuple(secrets))),
        digest=compute_specs_digest(files),
        cluster=resolved.cluster,
        benign=list_benign_lines(fixes),
        aliases=list_secret_aliases(fixes),
        shift_ports=options.shift_ports,
        notes=(f"forced: the stack of target {target} contradicts itself: {forced}",) if forced else (),
    )
    plan = plan_exposure_or_refuse(
        app,
        plan,
        prepared.network_mode,
        run_store.data_dir,
        allow_unauthenticated=options.allow_unauthenticated,
        port_names_to_publish=options.publish,
    )
    with app.collecting_refusals_if_dry_run("parameters"):
        require_user_paths_on_disk(job, values, plan.paths)
    with app.collecting_refusals_if_dry_run("stages"):
        plan = _skip_to_stage(plan, options)
    if app.dry_run:
        if backend.is_local:
            with app.collecting_refusals_if_dry_run("data disk"):
                run_store.require_unlocked()
        if prepared.shares_host_ports:
            check_ports(app, plan)
        return _show(app, job, plan, fit)
    entry = build_override_entry(
        values,
        options.param_settings,
        previous_params=resolve_default_params(job),
        first_stage=options.first_stage,
        force=options.force,
    )
    files[OVERRIDES_FILE] = add_entry_to_overrides_text(entry)

    def write_run() -> WrittenRun:
        if prepared.shares_host_ports:
            check_ports(app, plan)
        run_dir = run_store.create_run(plan, find_job_programs_dir(app, job), files)
        app.print_status(f"run {plan.run_id}: {run_dir}")
        return WrittenRun(plan=plan, run_dir=run_dir)

    return start_and_follow(
        app,
        run_store,
        prepared,
        create_lock_owner_from_plan(plan),
        write_run,
        secrets,
        detach_once_running=options.detach,
    )


def set_owner_to_caller(plan: RunPlan) -> RunPlan:
    return dataclasses.replace(plan, user=get_user_name(), uid=os.getuid(), host=socket.gethostname())


def _check_fit(
    app: App, job: Job, values: ParamValues, target: str, run_store: RunStore, backend: Backend, options: RunOptions
) -> FitResult | None:
    fit = None
    with app.collecting_refusals_if_dry_run("memory"):
        capacity = load_declared_capacity(app, target, get_gpus_option_or_env(options.gpus))
        if backend.is_local:
            capacity = replace_declared_by_measured_capacity(
                app, target, capacity, run_store.data_dir, get_gpus_option_or_env(options.gpus)
            )
        fit = check_fit(job, values, capacity)
        require_fit(app, job, fit, _fit_request(job.name, options), force=options.force)
    return fit


def _fit_request(job: str, options: RunOptions) -> RunCommand:
    place = "" if options.place == DEFAULT_PLACE else options.place
    given = {"--target": options.target, "--place": place, "--gpus": options.gpus, "--data": options.data}
    given |= {"--nodes": options.nodes, "--cluster": options.cluster}
    args = tuple(word for option, value in given.items() if value for word in (option, value))
    return RunCommand(
        command_words=("run", job), profiles=options.profiles, settings=options.param_settings, option_words=args
    )


def _show(app: App, job: Job, plan: RunPlan, fit: FitResult | None) -> int:
    """Say what would run, what it needs, and whether it would start."""
    on = f"on {plan.target}, place {plan.place}"
    lines = [f"# run of {plan.job} {on}, profile {plan.profile or 'default'}"]
    lines += [f"# {line}" for line in format_param_lines(plan.params, plan.origins, list_params_with_unit(job))]
    lines += [f"# secret {secret}" for secret in plan.secrets]
    lines += [f"# {line}" for line in needs_lines(fit.needs, fit.capacity)] if fit else []
    for stage in plan.stages:
        if stage.name in plan.skipped:
            lines += ["", f"# stage {stage.name}: left out"]
            continue
        lines += ["", f"# stage {stage.name}: {stage.title}"]
        lines += [f"{shlex.join(service.argv)}  # service {service.name}" for service in stage.services]
        lines += [shlex.join(stage.argv)]
        lines += [f"#   gate: {rule.kind_and_rule}" for rule in GateChecker(stage).states()]
        lines += ["#   gate: the first of these lines come in this order, log by log"] if stage.ordered else []
    needs = {"needs": needs_json(fit.needs, fit.capacity, fit.shortages)} if fit else {}
    count = len(plan.stages) - len(plan.skipped)
    stages = counted(count, "stage", "stages")
    return app.planned({"plan": plan.as_json(), **needs}, "\n".join(lines), f"start a run of {plan.job} {on}: {stages}")


def list_stages_before(plan: RunPlan, name: str | None) -> tuple[str, ...]:
    """Return the stages before the stage `name`, none when it is None; `SpecError` when there is no such stage."""
    names = [stage.name for stage in plan.stages]
    if name and name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = _(" (did you mean {near!r}?)").format(near=near[0]) if near else ""
        raise SpecError(
            _("job {job} has no stage {name!r}{hint}").format(job=plan.job, name=name, hint=hint),
            next_step=_("choose one of: {names}").format(names=", ".join(names)),
        )
    return tuple(names[: names.index(name)]) if name else ()


def _skip_to_stage(plan: RunPlan, options: RunOptions) -> RunPlan:
    """Return the plan of a run that begins with a later stage, which `--force` alone allows."""
    before = list_stages_before(plan, options.first_stage)
    if not before:
        return plan
    if not options.force:
        raise SpecError(
            _("stage {first_stage} may not begin: {before} has not passed in this run").format(
                first_stage=options.first_stage, before=", ".join(before)
            ),
            next_step=_("{step}, or override it with --force, which is recorded").format(
                step=format_run_command_without_params(plan)
            ),
        )
    return dataclasses.replace(plan, begin_at=options.first_stage, skipped=before)


def list_unpassed_stages(state: RunState, stages: tuple[str, ...]) -> tuple[str, ...]:
    passed = {stage.name for stage in state.stages if stage.state == "passed"}
    return tuple(name for name in stages if name not in passed)
