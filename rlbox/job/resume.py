"""The plan of a run that is taken up again: what is attempted once more gets the job's `[resume]` parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.job.filler import PlaceholderFiller
from rlbox.job.job import Job
from rlbox.job.param import format_scalar
from rlbox.job.params import ParamValues, apply_overrides, list_params_with_unit
from rlbox.job.plan import RunPlan, plan_stage, select_stages


def plan_resume(
    job: Job, previous_plan: RunPlan, attempt_by_stage: Mapping[str, int], set_options: Mapping[str, str] | None = None
) -> RunPlan:
    """Return `previous_plan` with the stages that run now planned anew.

    `attempt_by_stage`: The stages that run now, by name: the number of the attempt, 1 for a stage that never began.
      From the second on a stage gets the parameters of `[resume]` and its `resume` words; stages that are not named
      stay as they are.
    `set_options`: `--set` of the command line that resumes; they hold for all stages that run now, over `[resume]`.
    Raises SpecError: A setting is wrong, or the job no longer has the stages of the run.
    """
    wanted = select_stages(job, previous_plan.profile)
    if [stage.name for stage in wanted] != [stage.name for stage in previous_plan.stages]:
        raise SpecError(
            _("job {job} no longer has the stages of run {run_id}: {stages}").format(
                job=job.name,
                run_id=previous_plan.run_id,
                stages=", ".join(stage.name for stage in previous_plan.stages),
            ),
            next_step=_("start a new run: rlbox run {job} --place {place}").format(
                job=job.name, place=previous_plan.place
            ),
        )
    known = {name: value for name, value in previous_plan.params.items() if name in job.params}
    values = ParamValues(profile=previous_plan.profile, params=known, origins=previous_plan.origins)
    fresh = apply_overrides(job, values, False, set_options or {})
    again = apply_overrides(job, values, True, set_options or {})
    now = again if any(attempt > 1 for attempt in attempt_by_stage.values()) else fresh
    stages = []
    for number, (stage, old) in enumerate(zip(wanted, previous_plan.stages, strict=True), start=1):
        attempt = attempt_by_stage.get(stage.name, 0)
        fill = PlaceholderFiller(job, again if attempt > 1 else fresh, previous_plan.paths, attempt)
        stages.append(plan_stage(job, stage, number, fill, previous_plan.run_id) if attempt else old)
    return dataclasses.replace(
        previous_plan,
        params=dict(now.params),
        origins=dict(now.origins),
        units=list_params_with_unit(job),
        stages=tuple(stages),
        notes=(*previous_plan.notes, *_notes(job, attempt_by_stage)),
    )


def _notes(job: Job, attempts: Mapping[str, int]) -> list[str]:
    changed = ", ".join(f"{name} = {format_scalar(value)}" for name, value in job.resume.params.items())
    said = job.resume.says + (f" ({changed})" if changed and job.resume.says else "")
    return [f"{name}, attempt {number}: {said}" for name, number in attempts.items() if number > 1 and said]
