"""Start a new run, or take one up again in its own directory: what is checked, and what is written down before it."""

from __future__ import annotations

import dataclasses
import os
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlbox.app import App
from rlbox.config.schema import did_you_mean_hint
from rlbox.doctor.gpu_choice import get_gpus_option_or_env
from rlbox.errors import SpecError
from rlbox.fixes.catalogue import load_fix_catalogue
from rlbox.fixes.render import list_rules_of_benign_prefixed_fixes, list_secret_alias_groups
from rlbox.gate.gate import GateChecker
from rlbox.i18n import _, ngettext, translate
from rlbox.job.cluster_job import ResolvedJob, require_cluster_table
from rlbox.job.job import Job, load_job, shift_ports
from rlbox.job.names import ATTEMPT_PREFIX, SOURCE_PARAM
from rlbox.job.params import (
    ParamValues,
    build_undated_overrides_entry,
    format_param_lines,
    get_unit_by_param_except_fractions,
    resolve_default_params,
    resolve_params,
)
from rlbox.job.plan import RunPlan, replan_stages_for_resume
from rlbox.planner.fit import (
    FitResult,
    RunCommand,
    check_fit,
    format_needs_lines,
    load_declared_capacity,
    needs_to_json,
    replace_memory_and_disk_by_measured,
    require_fit,
    require_resume_fit_except_disk,
    require_set_param_paths_on_data_disk,
)
from rlbox.planner.stack_check import require_consistent_stack_or_forced_conflict
from rlbox.record.reconcile import FINISHED_STATES
from rlbox.record.run_dir import (
    OVERRIDES_FILE,
    add_entry_to_overrides_json,
    append_to_overrides_file,
    create_lock_owner_from_plan,
    create_run_id,
    write_run_plan,
)
from rlbox.record.run_store import RunStore
from rlbox.record.source_tree import SourceTree
from rlbox.record.state import RunState, compute_attempts_of_stages_to_run, find_first_unpassed_unskipped_stage
from rlbox.record.supervisor_file import STOP_FILE, SUPERVISOR_FILE
from rlbox.run.backend import (
    CLUSTER,
    DEFAULT_PLACE,
    DEFAULT_TARGET,
    Backend,
    RunOptions,
    RunStarter,
    create_backend,
    format_run_command_without_params,
)
from rlbox.run.data_disk import load_environ_and_dotenv_masker, locate_run_store_or_run_remotely_and_exit
from rlbox.run.exposure import plan_and_print_exposure_or_refuse
from rlbox.run.hub import link_hub_snapshots_of_run
from rlbox.run.inputs import (
    SPEC,
    collect_spec_texts_by_path,
    compute_specs_digest,
    find_job_programs_dir,
    probe_plan_source_or_refuse_override,
    require_free_ports,
    require_job_secrets_from_env_and_files,
    require_matching_source_if_set,
)
from rlbox.run.launch import start_and_follow_stop_on_interrupt
from rlbox.system.identity import get_user_name_or_uid
from rlbox.system.safe_files import (
    ensure_dir_without_parents,
    is_regular_file,
    list_directory_empty_if_missing,
    read_bytes,
    remove_file,
    rename_path,
    replace_file,
)
from rlbox.values import Secret


def start_run_and_follow(app: App, job_name: str, options: RunOptions) -> int:
    """Start a new run and follow it; return rlbox's exit code. A dry run ends before it is made."""
    job = shift_ports(load_job(app.project, job_name), options.shift_ports)
    target = options.target or job.target
    gpus = get_gpus_option_or_env(options.gpus)
    backend = create_backend(options.place, dataclasses.replace(options, gpus=gpus))
    values = resolve_params(job, options.profiles, options.param_settings)
    if options.place == CLUSTER:
        require_cluster_table(job)
    forced = require_consistent_stack_or_forced_conflict(app, target, force=options.force)
    is_local_run = backend.is_data_disk_on_this_machine and options.place != CLUSTER
    tree = require_matching_source_if_set(
        app, job, values, is_local_run=is_local_run, accept_other_version=options.force
    )
    if tree:
        values = dataclasses.replace(values, params={**values.params, SOURCE_PARAM: tree.folder})
    secrets = require_job_secrets_from_env_and_files(app, job, target, options.data, options.env_file, values.params)
    run_store = backend.open_store_or_run_remotely_and_exit(app, target, secrets)
    resolved = backend.adapt_job_if_on_cluster(app, target, job, values)
    hub = link_hub_snapshots_of_run(app, resolved.job, resolved.values, target, options.place)
    job, values = resolved.job, dataclasses.replace(resolved.values, hub=hub.folders)
    fit = _check_fit(app, job, values, target, run_store, backend, options)
    need_disk_gib = fit.required_free_disk_gib_zero_if_short if fit and not options.force else None
    prepared = backend.check_and_prepare_run_start(app, target, run_store, need_disk_gib)
    fixes = load_fix_catalogue(app.project)
    files = {**collect_spec_texts_by_path(app, job, target, fixes), **_render_source_files(app, tree, secrets)}
    run_id = f"{job.name}-DRY-RUN" if app.dry_run else resolved.preset_run_id or create_run_id(job.name)
    forced_note = _("forced: the stack of target {target} contradicts itself: {forced}")
    plan = dataclasses.replace(
        _set_owner_to_caller(prepared.create_run_plan(job, values, run_id, tuple(secrets))),
        digest=compute_specs_digest(files),
        cluster=resolved.cluster,
        benign=list_rules_of_benign_prefixed_fixes(fixes),
        aliases=list_secret_alias_groups(fixes),
        shift_ports=options.shift_ports,
        notes=(*([forced_note.format(target=target, forced=forced)] if forced else []), *hub.notes),
    )
    plan = plan_and_print_exposure_or_refuse(app, plan, prepared.network_kind, run_store.data_dir, options)
    with app.collecting_refusals_if_dry_run("parameters"):
        require_set_param_paths_on_data_disk(job, values, plan.paths)
    with app.collecting_refusals_if_dry_run("stages"):
        skipped = _list_stages_before(plan, options.first_stage)
        _require_stages_passed(skipped, options, format_run_command_without_params(plan))
        plan = dataclasses.replace(plan, begin_at=options.first_stage if skipped else "", skipped=skipped)
    if app.dry_run:
        if backend.is_data_disk_on_this_machine:
            with app.collecting_refusals_if_dry_run("data disk"):
                run_store.require_unlocked_and_idle()
        if prepared.shares_local_machine_ports:
            require_free_ports(app, plan)
        return _show_new_run(app, job, plan, fit)
    files[OVERRIDES_FILE] = add_entry_to_overrides_json(
        build_undated_overrides_entry(
            values,
            options.param_settings,
            previous_params=resolve_default_params(job),
            first_stage=options.first_stage,
            force=options.force,
        )
    )

    def write_run() -> RunPlan:
        if prepared.shares_local_machine_ports:
            require_free_ports(app, plan)
        run_dir = run_store.create_run_dir(plan, find_job_programs_dir(app, job), files)
        app.print_status(_("run {run}: {folder}").format(run=plan.run_id, folder=run_dir))
        return plan

    owner = create_lock_owner_from_plan(plan)
    return start_and_follow_stop_on_interrupt(
        app, run_store, prepared, owner, write_run, secrets, detach_once_running=options.detach
    )


def _set_owner_to_caller(plan: RunPlan) -> RunPlan:
    return dataclasses.replace(plan, user=get_user_name_or_uid(), uid=os.getuid(), host=socket.gethostname())


def _render_source_files(app: App, tree: SourceTree | None, secrets: Mapping[str, Secret]) -> dict[str, str]:
    return tree.render_record_texts_by_filename(load_environ_and_dotenv_masker(app, (), secrets)) if tree else {}


def _check_fit(
    app: App, job: Job, values: ParamValues, target: str, run_store: RunStore, backend: Backend, options: RunOptions
) -> FitResult | None:
    fit, gpus = None, get_gpus_option_or_env(options.gpus)
    with app.collecting_refusals_if_dry_run("memory"):
        capacity = load_declared_capacity(app, target, gpus)
        if backend.is_data_disk_on_this_machine:
            capacity = replace_memory_and_disk_by_measured(app, target, capacity, run_store.data_dir, gpus)
        fit = check_fit(job, values, capacity)
        place = "" if options.place == DEFAULT_PLACE else options.place
        given = {"--target": options.target, "--place": place, "--gpus": options.gpus, "--data": options.data}
        given |= {"--nodes": options.nodes, "--cluster": options.cluster}
        command = RunCommand(
            command_words=("run", job.name),
            profiles=options.profiles,
            settings=options.param_settings,
            option_words=tuple(word for option, value in given.items() if value for word in (option, value)),
        )
        require_fit(app, job, fit, command, warn_only=options.force)
    return fit


def _show_new_run(app: App, job: Job, plan: RunPlan, fit: FitResult | None) -> int:
    head = _("# run of {job} on {target}, place {place}, profile {profile}")
    profile = plan.profile or _("default")
    lines: list[str] = [head.format(job=plan.job, target=plan.target, place=plan.place, profile=profile)]
    lines += [
        f"# {translate(line)}"
        for line in format_param_lines(plan.params, plan.origins, get_unit_by_param_except_fractions(job))
    ]
    lines += [_("# secret {secret}").format(secret=secret) for secret in plan.secrets]
    lines += [f"# {translate(note)}" for note in plan.notes]
    lines += [f"# {translate(line)}" for line in format_needs_lines(fit.needs, fit.capacity)] if fit else []
    for stage in plan.stages:
        if stage.name in plan.skipped:
            lines += ["", _("# stage {stage}: left out").format(stage=stage.name)]
            continue
        lines += ["", _("# stage {stage}: {title}").format(stage=stage.name, title=stage.title)]
        of_service = _("{command}  # service {service}")
        lines += [of_service.format(command=shlex.join(one.argv), service=one.name) for one in stage.services]
        lines += [shlex.join(stage.argv)]
        gate = GateChecker(stage).copy_rule_states()
        lines += [_("#   gate: {rule}").format(rule=rule.kind_and_rule) for rule in gate]
        lines += [_("#   gate: the first of these lines come in this order, log by log")] if stage.ordered else []
    needs = {"needs": needs_to_json(fit.needs, fit.capacity, fit.shortages)} if fit else {}
    count = len(plan.stages) - len(plan.skipped)
    would = ngettext(
        "start a run of {job} on {target}, place {place}: {count} stage",
        "start a run of {job} on {target}, place {place}: {count} stages",
        count,
    ).format(job=plan.job, target=plan.target, place=plan.place, count=count)
    return app.print_dry_run({"plan": plan.as_json(), **needs}, "\n".join(map(translate, lines)), would)


def _list_stages_before(plan: RunPlan, name: str) -> tuple[str, ...]:
    """Return the stages before the stage `name`, none when it is empty; `SpecError` when there is no such stage."""
    names = [stage.name for stage in plan.stages]
    if name and name not in names:
        raise SpecError(
            _("job {job} has no stage {name!r}{hint}").format(
                job=plan.job, name=name, hint=did_you_mean_hint(name, names)
            ),
            next_step=_("choose one of: {names}").format(names=", ".join(names)),
        )
    return tuple(names[: names.index(name)]) if name else ()


def _require_stages_passed(skipped: tuple[str, ...], options: RunOptions, command: str) -> None:
    if skipped and not options.force:
        raise SpecError(
            _("stage {first_stage} may not begin: {skipped} has not passed in this run").format(
                first_stage=options.first_stage, skipped=", ".join(skipped)
            ),
            next_step=_("{step}, or override it with --force, which is recorded").format(step=command),
        )


def resume_run_and_follow(app: App, run_name: str, options: RunOptions) -> int:
    """Take up a run from the first stage that has not passed; return rlbox's exit code.

    `SpecError`: there is nothing to resume, or `--force` is missing for specs that changed or a stage that is left out.
    """
    target = options.target or DEFAULT_TARGET
    if options.place == CLUSTER and not (head := create_backend(CLUSTER, options)).is_data_disk_on_this_machine:
        head.open_store_or_run_remotely_and_exit(app, target, {})
    run_store = None
    with app.collecting_refusals_if_dry_run(_("run {run}").format(run=run_name)):
        run_store = locate_run_store_or_run_remotely_and_exit(app, target, options.data)
    if run_store is None:
        return app.print_dry_run({}, "", _("look for run {run}").format(run=run_name))
    run_dir = run_store.find_run_dir_or_latest(run_name)
    plan = _set_owner_to_caller(run_store.load_plan_preferring_host_record(run_dir))
    backend = create_backend(
        plan.place,
        dataclasses.replace(
            options,
            cluster=options.cluster or (plan.cluster.name if plan.cluster else ""),
            gpus=get_gpus_option_or_env(options.gpus) or plan.gpus,
        ),
    )
    job = shift_ports(load_job(app.project, plan.job), plan.shift_ports)
    values = ParamValues(profile=plan.profile, params=plan.params, origins=plan.origins, hub=plan.hub)
    resolved = backend.adapt_job_if_on_cluster(app, plan.target, job, values)
    hub = link_hub_snapshots_of_run(app, resolved.job, resolved.values, plan.target, plan.place)
    resolved = dataclasses.replace(resolved, values=dataclasses.replace(resolved.values, hub=hub.folders))
    tree = probe_plan_source_or_refuse_override(app, job, plan, options.param_settings)
    secrets = require_job_secrets_from_env_and_files(
        app, job, plan.target, str(run_store.data_dir), options.env_file, plan.params
    )
    prepared = backend.check_and_prepare_run_start(app, plan.target, run_store, 0.0 if job.fits else None)
    files = collect_spec_texts_by_path(app, resolved.job, plan.target, load_fix_catalogue(app.project))
    resumed = _ResumedRun(
        app=app,
        run_store=run_store,
        run_dir=run_dir,
        plan=plan,
        resolved=resolved,
        options=options,
        prepared=prepared,
        secrets=tuple(secrets),
        files={**files, **_render_source_files(app, tree, secrets)},
    )
    if app.dry_run:
        return resumed.show()

    def write_run() -> RunPlan:
        # whoever had the disk until now may have taken it up as well
        current = run_store.load_plan_preferring_host_record(run_dir)
        next_plan = dataclasses.replace(resumed, plan=_set_owner_to_caller(current)).write()
        started = _("run {run}, attempt {attempt}: {folder}")
        app.print_status(started.format(run=next_plan.run_id, attempt=next_plan.attempt, folder=run_dir))
        return next_plan

    owner = create_lock_owner_from_plan(plan)
    return start_and_follow_stop_on_interrupt(
        app, run_store, prepared, owner, write_run, secrets, detach_once_running=options.detach
    )


@dataclass(frozen=True, kw_only=True)
class _ResumedRun:
    """A run that is to be taken up: the plan that it had, its job as it is now, and the files of its next attempt."""

    app: App
    run_store: RunStore
    run_dir: Path
    plan: RunPlan
    resolved: ResolvedJob
    options: RunOptions
    prepared: RunStarter
    secrets: tuple[str, ...]
    files: Mapping[str, str]

    def show(self) -> int:
        app, plan, next_plan = self.app, self.plan, self.plan
        with app.collecting_refusals_if_dry_run("data disk"):
            self.run_store.require_unlocked_and_idle()
            with app.collecting_refusals_if_dry_run("stages"):
                next_plan, __ = self._plan_next_attempt()
            next_plan = self._check_exposure_and_ports(next_plan)
        state = self._load_state()
        attempts = self._list_attempts(state) if state else {stage.name: 1 for stage in plan.stages}
        words = {"run": plan.run_id, "attempt": next_plan.attempt, "target": plan.target, "place": plan.place}
        lines: list[str] = [_("# run {run}, attempt {attempt}, on {target}, place {place}").format(**words)]
        for stage in next_plan.stages:
            if stage.name in attempts:
                head = _("# stage {stage}, attempt {attempt}: {title}")
                attempt = attempts[stage.name]
                lines += ["", head.format(stage=stage.name, attempt=attempt, title=stage.title)]
                lines += [shlex.join(stage.argv)]
            else:
                skipped = stage.name in next_plan.skipped
                outcome = _("# stage {stage}: left out") if skipped else _("# stage {stage}: has passed")
                lines += ["", outcome.format(stage=stage.name)]
        data = {"plan": next_plan.as_json(), "attempts": attempts}
        would = _("take up run {run}, attempt {attempt}, on {target}, place {place}").format(**words)
        return app.print_dry_run(data, "\n".join(map(translate, lines)), would)

    def _check_exposure_and_ports(self, plan: RunPlan) -> RunPlan:
        network_kind, data_dir = self.prepared.network_kind, self.run_store.data_dir
        plan = plan_and_print_exposure_or_refuse(self.app, plan, network_kind, data_dir, self.options)
        if self.prepared.shares_local_machine_ports:
            require_free_ports(self.app, plan)
        return plan

    def _load_state(self) -> RunState | None:
        return self.run_store.load_state_marked_failed_if_tampered(self.run_dir)

    def _list_attempts(self, state: RunState) -> dict[str, int]:
        return compute_attempts_of_stages_to_run(
            state, self.options.first_stage or find_first_unpassed_unskipped_stage(state)
        )

    def write(self) -> RunPlan:
        options = self.options
        plan, forced = self._plan_next_attempt()
        plan = self._check_exposure_and_ports(plan)
        entry = build_undated_overrides_entry(
            ParamValues(profile=plan.profile, params=plan.params, origins=plan.origins),
            options.param_settings,
            previous_params=self.plan.params,
            first_stage=options.first_stage,
            force=options.force,
            notes=plan.notes,
            resume=True,
        )
        append_to_overrides_file(self.run_dir, {**entry, "attempt": plan.attempt, **forced})
        self._replace_specs(forced.get("changed_specs", []))
        for name in (SUPERVISOR_FILE, STOP_FILE):
            remove_file(self.run_dir / name)
        write_run_plan(self.run_dir, plan)
        return plan

    def _replace_specs(self, changed: list[str]) -> None:
        """Put the specs of this attempt in the place of those that changed, which stay beside them."""
        for name in changed:
            path = self.run_dir / name
            if is_regular_file(path):
                old = path.parent / f"{ATTEMPT_PREFIX}{self.plan.attempt}"
                ensure_dir_without_parents(old)
                rename_path(path, old / path.name)
        # the diff that the record names is no spec, and there for the first time
        for name, text in self.files.items():
            if name in changed or not is_regular_file(self.run_dir / name):
                replace_file(self.run_dir / name, text.encode())

    def _plan_next_attempt(self) -> tuple[RunPlan, dict[str, list[str]]]:
        """Return the plan of the run's next attempt, and what `--force` overrode for it."""
        app, options, job = self.app, self.options, self.resolved.job
        plan = dataclasses.replace(
            self.plan,
            params=self.resolved.values.params,
            origins=self.resolved.values.origins,
            hub=self.resolved.values.hub,
            cluster=self.resolved.cluster,
        )
        state = self._load_state()
        digest = compute_specs_digest(self.files)
        changed = _list_changed_specs(self.run_dir, self.files) if digest != plan.digest else ()
        passed = {stage.name for stage in state.stages if stage.state == "passed"} if state else set[str]()
        skipped = tuple(name for name in _list_stages_before(plan, options.first_stage) if name not in passed)
        if state:
            _require_unfinished(app, plan, state, options)
        with app.collecting_refusals_if_dry_run("specs"):
            _require_same_specs(plan, changed, options)
        with app.collecting_refusals_if_dry_run("stages"):
            _require_stages_passed(skipped, options, f"rlbox run --resume {plan.run_id}")
        if state:
            plan = replan_stages_for_resume(job, plan, self._list_attempts(state), options.param_settings)
            plan = dataclasses.replace(plan, attempt=state.attempt + 1)
            values = ParamValues(profile=plan.profile, params=plan.params, origins=plan.origins)
            with app.collecting_refusals_if_dry_run("memory"):
                require_resume_fit_except_disk(app, job, plan, options.param_settings, warn_only=options.force)
            with app.collecting_refusals_if_dry_run("parameters"):
                require_set_param_paths_on_data_disk(job, values, plan.paths)
        # said outright: the run's own record may be changed before its supervisor reads it
        begin_at = options.first_stage or (find_first_unpassed_unskipped_stage(state) if state else None) or ""
        plan = dataclasses.replace(plan, digest=digest, begin_at=begin_at, skipped=skipped, secrets=self.secrets)
        return plan, {"changed_specs": list(changed), "skipped": list(skipped)} if changed or skipped else {}


def _require_unfinished(app: App, plan: RunPlan, state: RunState, options: RunOptions) -> None:
    run = plan.run_id
    if state.state not in FINISHED_STATES:
        if not app.dry_run:
            raise SpecError(
                _("run {run} could not be reconciled: it may still be in progress").format(run=run),
                next_step="rlbox runs",
            )
        app.dry.steps_before.append(_("run {run}, which nothing carries out any more, is settled").format(run=run))
    if not options.first_stage and find_first_unpassed_unskipped_stage(state) is None:
        raise SpecError(
            _("run {run} has nothing left to do: all its stages passed").format(run=run),
            next_step=_("{new_run}, or run a stage again with: rlbox run --resume {run} --from STAGE").format(
                new_run=format_run_command_without_params(plan), run=run
            ),
        )


def _require_same_specs(plan: RunPlan, changed: tuple[str, ...], options: RunOptions) -> None:
    if changed and not options.force:
        raise SpecError(
            _("run {run} cannot go on: {changed} changed since its earlier stages passed").format(
                run=plan.run_id, changed=", ".join(changed)
            ),
            next_step=_("start a new run: {new_run}; or override it with --force, which is recorded").format(
                new_run=format_run_command_without_params(plan)
            ),
        )


def _list_changed_specs(run_dir: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    names = {name for name in files if name.startswith(SPEC)}
    names |= {f"{SPEC}{name}" for name in list_directory_empty_if_missing(run_dir / "spec") if "." in name}
    return tuple(name for name in sorted(names) if _read_text(run_dir / name) != files.get(name))


def _read_text(path: Path) -> str | None:
    try:
        return read_bytes(path).decode()
    except (OSError, UnicodeDecodeError):
        return None
