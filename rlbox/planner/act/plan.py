"""`rlbox plan`: a job's needs beside the room of its target, or of a machine that is named."""

from __future__ import annotations

from dataclasses import replace

from rlbox.app import App
from rlbox.job.load import load_job
from rlbox.job.params import plan_values
from rlbox.planner.act.check import declared_room, fit_of, require_fit
from rlbox.planner.nearest import Asked
from rlbox.planner.room import parse_machine
from rlbox.planner.view import needs_json, needs_lines, part_lines


def plan_job(app: App, name: str, wish: Asked, target: str, machine: str, gpus: str) -> int:
    """Show what a run of the job `name` needs and what there is; `wish` has its profiles and settings.

    Raises
    ------
    NodeError
        It does not fit; the nearest setting that does is named.
    """
    job = load_job(app.project, name)
    values = plan_values(job, wish.profiles, wish.settings)
    room = declared_room(app, target or job.target, gpus)
    if machine:
        room = parse_machine(machine, room)
    fit = fit_of(job, values, room)
    if fit is None:
        app.result({"needs": None}, f"job {name} does not say what it needs: [fits] in jobs/{name}.toml")
        app.say(f"next: rlbox run {name} --dry-run")
        return 0
    text = "\n".join([*needs_lines(fit.needs, room), "", *part_lines(fit.needs)])
    app.result({"needs": needs_json(fit.needs, room, fit.lacks)}, text.rstrip())
    told = {"--target": target, "--machine": machine, "--gpus": gpus}
    beside = tuple(word for option, value in told.items() if value for word in (option, value))
    start = ("plan" if machine else "run", name)  # a run asks the machine that it takes place on
    require_fit(app, job, fit, replace(wish, start=start, beside=beside))
    return 0
