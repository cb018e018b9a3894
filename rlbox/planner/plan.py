"""`rlbox plan`: a job's needs beside the room of its target, or of a machine that is named."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlbox.app import App
from rlbox.job.load import load_job
from rlbox.job.params import plan_values
from rlbox.planner.budget import (
    StageMeasurement,
    budget_json,
    budget_lines,
    parse_price,
    stage_hours,
    target_price,
)
from rlbox.planner.check import declared_room, fit_of, require_fit
from rlbox.planner.nearest import Asked
from rlbox.planner.room import parse_machine
from rlbox.planner.view import needs_json, needs_lines, part_lines
from rlbox.target.target import load_target


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """What hours and cost are computed from; with `calibrated` the runs count whatever their parameters."""

    runs: tuple[StageMeasurement, ...] = ()
    calibrated: bool = False
    price: str = ""


def plan_job(app: App, name: str, wish: Asked, target: str, machine: str, gpus: str, budget: BudgetOptions) -> int:
    """Show what a run of the job `name` needs and what there is; `wish` has its profiles and settings.

    Raises
    ------
    NodeError
        It does not fit; the nearest setting that does is named.
    """
    job = load_job(app.project, name)
    values = plan_values(job, wish.profiles, wish.settings)
    spec = load_target(app.project, target or job.target).target
    room = declared_room(app, spec.name, gpus)
    if machine:
        room = parse_machine(machine, room)
    fit = fit_of(job, values, room)
    hours = stage_hours(job, values, room.card, budget.runs, calibrated=budget.calibrated)
    price = parse_price(budget.price) if budget.price else target_price(spec)
    time = budget_json(hours, price)
    times = "\n".join(budget_lines(hours, price))
    if fit is None:
        silent = f"job {name} does not say what it needs: [fits] in jobs/{name}.toml"
        app.result({"needs": None, "time": time}, f"{silent}\n\n{times}")
        app.say(f"next: rlbox run {name} --dry-run")
        return 0
    text = "\n".join([*needs_lines(fit.needs, room), "", *part_lines(fit.needs)]).rstrip()
    app.result({"needs": needs_json(fit.needs, room, fit.lacks), "time": time}, f"{text}\n\n{times}")
    told = {"--target": target, "--machine": machine, "--gpus": gpus}
    beside = tuple(word for option, value in told.items() if value for word in (option, value))
    start = ("plan" if machine else "run", name)  # a run asks the machine that it takes place on
    require_fit(app, job, fit, replace(wish, start=start, beside=beside))
    return 0
