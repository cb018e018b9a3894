"""Start a new run at either place, or take one up again: what is checked, and what is written down before it starts."""

from __future__ import annotations

import dataclasses
import difflib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from rlbox.app import App
from rlbox.errors import RlboxError, SpecError
from rlbox.fixes.benign import known_benign
from rlbox.fixes.load import load_fixes
from rlbox.job.job import Job
from rlbox.job.params import Values
from rlbox.job.plan import RunPlan
from rlbox.machine.act.identity import user_name
from rlbox.record.act.folder import holder_of, list_runs, load_plan, make_run_folder, new_run_id
from rlbox.record.act.rebuild import last_state
from rlbox.record.act.state import RunState
from rlbox.run.follow import run_files, specs_digest
from rlbox.run.launch import Start, Wanted, launch, programs
from rlbox.values import Secret

DONE = ("passed", "skipped")


class Site(Protocol):
    """Where runs of a target take place."""

    @property
    def target(self) -> str:
        """The target's name."""

    @property
    def folder(self) -> Path:
        """The data disk."""

    def plan(self, job: Job, values: Values, run_id: str, secrets: tuple[str, ...]) -> RunPlan:
        """Return the plan of a new run."""

    def start(self, plan: RunPlan, run_dir: Path, secrets: Mapping[str, Secret]) -> Start:
        """Return the run, ready to start."""


def start_new(app: App, site: Site, job: Job, values: Values, wanted: Wanted) -> int:
    """Start a new run of `job` and follow it; return rlbox's exit code.

    Raises
    ------
    SpecError
        `--from` names a later stage: the earlier ones have not passed in a run that does not exist yet.
    """
    fixes = load_fixes(app.project)
    files = run_files(app, job, site.target, fixes)
    plan = site.plan(job, values, new_run_id(job.name), tuple(wanted.secrets))
    plan = dataclasses.replace(
        plan,
        digest=specs_digest(files),
        user=user_name(),
        uid=os.getuid(),
        host=socket.gethostname(),
        benign=known_benign(fixes),
    )
    plan = _begin_late(plan, site.folder, wanted)

    def prepare() -> Start:
        run_dir = make_run_folder(site.folder, plan, programs(app, job), files | dict(wanted.files))
        app.say(f"run {plan.run_id}: {run_dir}")
        return site.start(plan, run_dir, wanted.secrets)

    return launch(app, site.folder, holder_of(plan), prepare, wanted)


def check_stage(plan: RunPlan, name: str) -> tuple[str, ...]:
    """Return the names of the stages before the stage `name`; `SpecError` when there is no such stage."""
    names = [stage.name for stage in plan.stages]
    if name and name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise SpecError(f"job {plan.job} has no stage {name!r}{hint}", next_step=f"choose one of: {', '.join(names)}")
    return tuple(names[: names.index(name)]) if name else ()


def _begin_late(plan: RunPlan, data: Path, wanted: Wanted) -> RunPlan:
    """Return the plan of a run that begins with a later stage, which `--force` alone allows."""
    before = check_stage(plan, wanted.first_stage)
    if not before:
        return plan
    if not wanted.force:
        found = _run_with(data, plan, before)
        step = f"rlbox run --resume {found} --from {wanted.first_stage}" if found else f"rlbox run {plan.job}"
        raise SpecError(
            f"stage {wanted.first_stage} may not begin: {', '.join(before)} has not passed in this run",
            next_step=f"{step}, or override it with --force, which is recorded",
        )
    return dataclasses.replace(plan, begin_at=wanted.first_stage, skipped=before)


def _run_with(data: Path, plan: RunPlan, stages: tuple[str, ...]) -> str:
    """Return the latest run of the same job, lock and specs in which `stages` passed; empty when there is none."""
    for run_dir in list_runs(data):
        try:
            other = load_plan(run_dir)
        except RlboxError:
            continue
        if (other.job, other.target, other.digest) != (plan.job, plan.target, plan.digest):
            continue
        state = last_state(run_dir, other)
        if state and set(stages) <= {stage.name for stage in state.stages if stage.state == "passed"}:
            return other.run_id
    return ""


def unpassed(state: RunState, stages: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of `stages` that have not passed."""
    passed = {stage.name for stage in state.stages if stage.state == "passed"}
    return tuple(name for name in stages if name not in passed)
