"""What is different between two runs: what they were told, and what came out."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlbox.amounts import duration_text
from rlbox.artifacts.relock import list_lock_changes
from rlbox.i18n import _, translate
from rlbox.job.param import format_scalar
from rlbox.job.plan import RunPlan, parse_run_plan
from rlbox.report.metrics import read_metrics
from rlbox.report.read import RunRecord

TOLD = (
    _("run"),
    _("parameters"),
    _("source"),
    _("job file"),
    _("target spec"),
    _("lock"),
    _("environment"),
    _("secrets"),
    _("commands"),
)
OUTCOME = (_("gates"), _("outcome"), _("metrics"))
DURATIONS = _("durations")
"""They always differ a little, so they do not make two runs different."""


@dataclass(frozen=True, kw_only=True)
class RunDifference:
    """One thing that differs; `before` and `after` are empty for what a run does not have."""

    part: str
    name: str
    before: str
    after: str


def diff_runs(a: RunRecord, b: RunRecord) -> tuple[RunDifference, ...]:
    """Return what differs between two runs, part by part; paths of the run directories count as equal.

    Raises
    ------
    SpecError
        The plan of one cannot be read.
    """
    found: list[RunDifference] = []
    before, after = _collect_facts(a), _collect_facts(b)
    for part in before:
        found += _compare(part, before[part], after[part])
    locks = a.load_lock_or_none(), b.load_lock_or_none()
    if locks[0] and locks[1]:
        changes = list_lock_changes(locks[0], locks[1])
        found += [RunDifference(part="lock", name=c.name, before=c.before, after=c.after) for c in changes]
    order = {part: number for number, part in enumerate((*TOLD, *OUTCOME, DURATIONS))}
    return tuple(sorted(found, key=lambda difference: order[difference.part]))


def differs_beyond_durations(differences: Iterable[RunDifference]) -> bool:
    return any(difference.part != DURATIONS for difference in differences)


def differences_to_json(names: tuple[str, str], differences: Iterable[RunDifference]) -> dict[str, Any]:
    found = list(differences)
    told = any(difference.part in TOLD for difference in found)
    return {
        "before": names[0],
        "after": names[1],
        "same": not differs_beyond_durations(found),
        "same_configuration": not told,
        "differences": [asdict(difference) for difference in found],
    }


def format_differences(names: tuple[str, str], differences: Iterable[RunDifference]) -> str:
    """Return the differences for people, in the manner of `diff`: `-` the first run, `+` the second."""
    found = list(differences)
    lines = [f"--- {names[0]}", f"+++ {names[1]}"]
    if not differs_beyond_durations(found):
        lines.append(translate(_("the same: configuration, gates, outcome and metrics")))
    elif not any(difference.part in TOLD for difference in found):
        lines.append(translate(_("the configuration is the same, what came out is not")))
    part = ""
    for difference in found:
        if difference.part != part:
            part = difference.part
            lines.append(f"@@ {translate(_(part))}")
        if difference.part in (DURATIONS, "metrics"):
            lines.append(f"  {difference.name}: {difference.before or '-'} -> {difference.after or '-'}")
            continue
        lines += [f"-{difference.name}: {difference.before}"] if difference.before else []
        lines += [f"+{difference.name}: {difference.after}"] if difference.after else []
    return "\n".join(lines)


def _compare(part: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[RunDifference]:
    names = dict.fromkeys([*before, *after])
    pairs = ((name, before.get(name, ""), after.get(name, "")) for name in names)
    return [RunDifference(part=part, name=name, before=old, after=new) for name, old, new in pairs if old != new]


def _place_free(plan: RunPlan) -> Callable[[str], str]:
    paths = plan.paths
    known = [(paths.run, "{run}"), (paths.data, "{data}"), (paths.python, "{python}"), (plan.run_id, "{run_id}")]
    known = sorted((pair for pair in known if len(pair[0]) > 1), key=lambda pair: -len(pair[0]))

    def free(text: str) -> str:
        for path, placeholder in known:
            text = text.replace(path, placeholder)
        return text

    return free


def _collect_facts(record: RunRecord) -> dict[str, Mapping[str, str]]:
    plan = parse_run_plan(record.plan)
    free = _place_free(plan)
    stages = record.state.stages if record.began else ()
    environment = {name: free(value) for name, value in sorted(plan.env.items())}
    commands = {}
    for stage in plan.stages:
        commands[stage.name] = free(shlex.join(stage.argv))
        environment |= {f"{stage.name}: {name}": free(value) for name, value in sorted(stage.env.items())}
        for service in stage.services:
            commands[f"service {service.name}"] = free(shlex.join(service.argv))
            environment |= {f"{service.name}: {name}": free(value) for name, value in sorted(service.env.items())}
    found = read_metrics(record.folder, record.state.stages, 2, read_logs=False)
    metrics = {".".join(filter(None, (metric.stage, metric.series.name))): metric.points[-1].value for metric in found}
    return {
        "run": {"job": plan.job, "target": plan.target, "place": plan.place, "profile": plan.profile or "default"},
        "parameters": {name: _format_parameter(plan, name, free) for name in sorted(plan.params)},
        "source": dict(_leaves(record.read_spec_toml_or_empty("source"), "")),
        "job file": dict(_leaves(record.read_spec_toml_or_empty("job"), "")),
        "target spec": dict(_leaves(record.read_spec_toml_or_empty("target"), "")),
        "lock": {"lock.json": "there" if record.load_lock_or_none() else ""},
        "environment": environment,
        "secrets": dict.fromkeys(plan.secrets, "handed over"),
        "commands": commands,
        "gates": {f"{stage.name}: {free(rule.kind_and_rule)}": rule.state for stage in stages for rule in stage.gate},
        "outcome": _collect_outcome(record, free) if record.began else {"run": "never began"},
        "metrics": {name: f"{value:.6g}" for name, value in sorted(metrics.items())},
        DURATIONS: {stage.name: duration_text(stage.seconds) for stage in stages if stage.seconds},
    }


def _format_parameter(plan: RunPlan, name: str, free: Callable[[str], str]) -> str:
    origin = f"({plan.origins[name]})" if plan.origins.get(name) else ""
    return " ".join(filter(None, (free(format_scalar(plan.params[name])), plan.units.get(name, ""), origin)))


def _collect_outcome(record: RunRecord, free: Callable[[str], str]) -> dict[str, str]:
    outcome: dict[str, str] = {"run": record.state.state}
    for stage in record.state.stages:
        code = "" if stage.exit_code is None else f", exit code {stage.exit_code}"
        cause = f": {free(stage.cause.what)}" if stage.cause else ""
        outcome[stage.name] = f"{stage.state}{code}{cause}"
    return outcome


def _leaves(value: Any, path: str) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            key = item.get("name", number) if isinstance(item, Mapping) else number
            yield from _leaves(item, f"{path}[{key}]")
    else:
        yield path, format_scalar(value) if isinstance(value, (bool, int, float, str)) else str(value)
