"""`rlbox run --resume RUN`: take a run up again in its own directory, from the first stage that has not passed."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlbox.app import App
from rlbox.doctor.gpu_choice import get_gpus_option_or_env
from rlbox.errors import SpecError
from rlbox.fixes.catalogue import load_fixes
from rlbox.i18n import _
from rlbox.job.load import load_job, shift_ports
from rlbox.job.names import ATTEMPT_PREFIX
from rlbox.job.params import ParamValues, build_override_entry
from rlbox.job.plan import RunPlan
from rlbox.job.resume import plan_resume
from rlbox.planner.fit import require_resume_fit_except_disk, require_user_paths_on_disk
from rlbox.record.reconcile import FINISHED_STATES
from rlbox.record.run_dir import append_to_overrides_file, create_lock_owner_from_plan, write_run_plan
from rlbox.record.run_store import RunStore
from rlbox.record.state import RunState, compute_attempts_of_stages_to_run, find_first_stage_to_run
from rlbox.record.supervisor_file import STOP_FILE, SUPERVISOR_FILE
from rlbox.run.backend import (
    CLUSTER,
    DEFAULT_TARGET,
    PreparedBackend,
    ResolvedJob,
    RunOptions,
    format_run_command_without_params,
    load_backend,
)
from rlbox.run.data_disk import load_masks_from_environ_and_dotenv, open_existing_store_or_exec_remotely
from rlbox.run.exposure import plan_exposure_or_refuse
from rlbox.run.inputs import (
    SPEC,
    check_ports,
    collect_run_files,
    compute_specs_digest,
    load_secrets_from_environ_and_files,
    probe_source_or_refuse_change,
)
from rlbox.run.launch import WrittenRun, start_and_follow
from rlbox.run.start import DONE, list_stages_before, list_unpassed_stages, set_owner_to_caller
from rlbox.system.safe_files import (
    is_regular_file,
    list_directory_empty_if_missing,
    make_directory,
    read_bytes,
    remove_file,
    rename_path,
    replace_file,
)


def resume_run(app: App, name: str, options: RunOptions) -> int:
    """Take up the run `name` on a data disk; return rlbox's exit code.

    Parameters
    ----------
    options
        Its target is the one whose data disk holds the run, when the options name no disk; by default `local`.

    Raises
    ------
    SpecError
        There is nothing to resume, its specs have changed since, or `--from` would leave out a stage that has not
        passed; `--force` overrides the last two.
    LockHeld
        It, or another run, goes on.
    """
    if options.place == CLUSTER and not load_backend(CLUSTER).is_local:
        load_backend(CLUSTER, options).open_store_or_exec_remotely(
            app, options.target or DEFAULT_TARGET, options.data, {}
        )
    run_store = None
    with app.collecting_refusals_if_dry_run(f"run {name}"):
        run_store = open_existing_store_or_exec_remotely(app, options.target or DEFAULT_TARGET, options.data)
    if run_store is None:
        return app.planned({}, "", f"look for run {name}")
    run_dir = run_store.find_run(name)
    plan = run_store.load_plan_preferring_host_record(run_dir)
    job = shift_ports(load_job(app.project, plan.job), plan.shift_ports)
    now = ParamValues(profile=plan.profile, params=plan.params, origins=plan.origins)
    backend = load_backend(plan.place, _with_cluster_of(options, plan))
    resolved = backend.adapt_job_if_on_cluster(app, plan.target, job, now)
    source = probe_source_or_refuse_change(app, job, plan, options.param_settings)
    secrets = load_secrets_from_environ_and_files(
        app, job, plan.target, str(run_store.data_dir), options.env_file, plan.params
    )
    tree = source.render_record_files(load_masks_from_environ_and_dotenv(app, (), secrets)) if source else {}
    resumed = _ResumedRun(
        app=app, run_store=run_store, run_dir=run_dir, plan=plan, resolved=resolved, options=options, tree=tree
    )
    prepared = backend.ensure_ready(
        app, plan.target, run_store, get_gpus_option_or_env(options.gpus) or plan.gpus, 0.0 if job.fits else None
    )
    if app.dry_run:
        return resumed.show(tuple(secrets), prepared)

    def write_run() -> WrittenRun:
        reconciled = dataclasses.replace(resumed, plan=run_store.load_plan_preferring_host_record(run_dir))
        next_plan = reconciled.write(tuple(secrets), prepared)
        app.print_status(f"run {next_plan.run_id}, attempt {next_plan.attempt}: {run_dir}")
        return WrittenRun(plan=next_plan, run_dir=run_dir)

    return start_and_follow(
        app,
        run_store,
        prepared,
        create_lock_owner_from_plan(set_owner_to_caller(plan)),
        write_run,
        secrets,
        detach_once_running=options.detach,
    )


def _with_cluster_of(options: RunOptions, plan: RunPlan) -> RunOptions:
    """Return the options with the cluster that the run is on, unless they name one."""
    named = options.cluster or (plan.cluster.name if plan.cluster else "")
    return dataclasses.replace(options, cluster=named)


@dataclass(frozen=True, kw_only=True)
class _ResumedRun:
    """A run that is to be taken up: its directory, the plan that it had, its job as it is there, how it is to go on.

    `tree` is what its directory holds of the user's tree of its framework, by name.
    """

    app: App
    run_store: RunStore
    run_dir: Path
    plan: RunPlan
    resolved: ResolvedJob
    options: RunOptions
    tree: Mapping[str, str]

    def show(self, secrets: tuple[str, ...], prepared: PreparedBackend) -> int:
        app, plan = self.app, self.plan
        now = plan
        with app.collecting_refusals_if_dry_run("data disk"):
            self.run_store.require_unlocked()
            with app.collecting_refusals_if_dry_run("stages"):
                now, __ = self._next_plan(secrets)
            now = self._closed(now, prepared.network_mode)
            if prepared.shares_host_ports:
                check_ports(app, now)
        state = self.run_store.load_state_checked_with_host_record(self.run_dir)
        attempts = (
            compute_attempts_of_stages_to_run(state, self.options.first_stage or find_first_stage_to_run(state))
            if state
            else {stage.name: 1 for stage in plan.stages}
        )
        on = f"attempt {now.attempt}, on {plan.target}, place {plan.place}"
        lines = [f"# run {plan.run_id}, {on}"]
        for stage in now.stages:
            if stage.name in attempts:
                lines += [
                    "",
                    f"# stage {stage.name}, attempt {attempts[stage.name]}: {stage.title}",
                    shlex.join(stage.argv),
                ]
            else:
                lines += ["", f"# stage {stage.name}: {'left out' if stage.name in now.skipped else 'has passed'}"]
        data = {"plan": now.as_json(), "attempts": attempts}
        return app.planned(data, "\n".join(lines), f"take up run {plan.run_id}, {on}")

    def _closed(self, now: RunPlan, network: str) -> RunPlan:
        options = self.options
        return plan_exposure_or_refuse(
            self.app,
            now,
            network,
            self.run_store.data_dir,
            allow_unauthenticated=options.allow_unauthenticated,
            port_names_to_publish=options.publish,
        )

    def write(self, secrets: tuple[str, ...], prepared: PreparedBackend) -> RunPlan:
        """Check that the run may go on, and write down the plan of its next attempt."""
        options = self.options
        now, forced = self._next_plan(secrets)
        now = self._closed(now, prepared.network_mode)
        if prepared.shares_host_ports:
            check_ports(self.app, now)
        entry = build_override_entry(
            ParamValues(profile=now.profile, params=now.params, origins=now.origins),
            options.param_settings,
            previous_params=self.plan.params,
            first_stage=options.first_stage,
            force=options.force,
            notes=now.notes,
            resume=True,
        )
        append_to_overrides_file(self.run_dir, {**entry, "attempt": now.attempt, **forced})
        self._keep_specs(forced.get("changed_specs", []))
        for name in (SUPERVISOR_FILE, STOP_FILE):
            remove_file(self.run_dir / name)
        write_run_plan(self.run_dir, now)
        return now

    def _keep_specs(self, changed: list[str]) -> None:
        """Put the specs of this attempt in the place of those that changed, which stay beside them."""
        files = self._files()
        for name in self.tree.keys() - set(changed):  # the diff that the record names
            if not is_regular_file(self.run_dir / name):
                replace_file(self.run_dir / name, files[name].encode())
        for name in changed:
            path = self.run_dir / name
            if is_regular_file(path):
                old = path.parent / f"{ATTEMPT_PREFIX}{self.plan.attempt}"
                make_directory(old)
                rename_path(path, old / path.name)
            if name in files:
                replace_file(path, files[name].encode())

    def _next_plan(self, secrets: tuple[str, ...]) -> tuple[RunPlan, dict[str, list[str]]]:
        """Return the plan of the run's next attempt, and what `--force` overrode for it."""
        options, files, job = self.options, self._files(), self.resolved.job
        values, cluster = self.resolved.values, self.resolved.cluster
        plan = dataclasses.replace(
            set_owner_to_caller(self.plan), params=values.params, origins=values.origins, cluster=cluster
        )
        state = self.run_store.load_state_checked_with_host_record(self.run_dir)
        changed = _changed(self.run_dir, files) if compute_specs_digest(files) != plan.digest else ()
        before = list_stages_before(plan, options.first_stage)
        skipped = list_unpassed_stages(state, before) if state else before
        _refuse(self.app, plan, state, changed, skipped, options)
        if state:
            attempts = compute_attempts_of_stages_to_run(state, options.first_stage or find_first_stage_to_run(state))
            plan = plan_resume(job, plan, attempts, options.param_settings)
            plan = dataclasses.replace(plan, attempt=state.attempt + 1)
            values = ParamValues(profile=plan.profile, params=plan.params, origins=plan.origins)
            with self.app.collecting_refusals_if_dry_run("memory"):
                require_resume_fit_except_disk(self.app, job, plan, options.param_settings, force=options.force)
            with self.app.collecting_refusals_if_dry_run("parameters"):
                require_user_paths_on_disk(job, values, plan.paths)
        # said outright: the run's own record may be changed before its supervisor reads it
        begin_at = options.first_stage or (find_first_stage_to_run(state) if state else None) or ""
        plan = dataclasses.replace(
            plan, digest=compute_specs_digest(files), begin_at=begin_at, skipped=skipped, secrets=secrets
        )
        return plan, {"changed_specs": list(changed), "skipped": list(skipped)} if changed or skipped else {}

    def _files(self) -> dict[str, str]:
        fixes = load_fixes(self.app.project)
        return {**collect_run_files(self.app, self.resolved.job, self.plan.target, fixes), **self.tree}


def _refuse(
    app: App,
    plan: RunPlan,
    state: RunState | None,
    changed: tuple[str, ...],
    skipped: tuple[str, ...],
    options: RunOptions,
) -> None:
    run = plan.run_id
    if state and state.state not in FINISHED_STATES and app.dry_run:
        app.dry.steps_before.append(f"run {run}, which nothing carries out any more, is settled")
    elif state and state.state not in FINISHED_STATES:
        raise SpecError(
            _("run {run} could not be reconciled: it may still be in progress").format(run=run),
            next_step="rlbox runs",
        )
    if state and not options.first_stage and all(stage.state in DONE for stage in state.stages):
        raise SpecError(
            _("run {run} has nothing left to do: all its stages passed").format(run=run),
            next_step=_("{new_run}, or run a stage again with: rlbox run --resume {run} --from STAGE").format(
                new_run=format_run_command_without_params(plan), run=run
            ),
        )
    with app.collecting_refusals_if_dry_run("specs"):
        if changed and not options.force:
            raise SpecError(
                _("run {run} cannot go on: {changed} changed since its earlier stages passed").format(
                    run=run, changed=", ".join(changed)
                ),
                next_step=_("start a new run: {new_run}; or override it with --force, which is recorded").format(
                    new_run=format_run_command_without_params(plan)
                ),
            )
    with app.collecting_refusals_if_dry_run("stages"):
        if skipped and not options.force:
            raise SpecError(
                _("stage {first_stage} may not begin: {skipped} has not passed in run {run}").format(
                    first_stage=options.first_stage, skipped=", ".join(skipped), run=run
                ),
                next_step=_("rlbox run --resume {run}, or override it with --force, which is recorded").format(run=run),
            )


def _changed(run_dir: Path, files: dict[str, str]) -> tuple[str, ...]:
    """Return the names of the specs that are not what they were when the run was made."""
    names = {name for name in files if name.startswith(SPEC)}
    names |= {f"{SPEC}{name}" for name in list_directory_empty_if_missing(run_dir / "spec") if "." in name}
    return tuple(name for name in sorted(names) if _text(run_dir / name) != files.get(name))


def _text(path: Path) -> str | None:
    try:
        return read_bytes(path).decode()
    except (OSError, UnicodeDecodeError):
        return None
