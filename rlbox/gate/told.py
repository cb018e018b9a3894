"""Tell a gate before a run: one line for each rule."""

from __future__ import annotations

from rlbox.gate.rules import benign_text, exit_text, metric_text, probe_text
from rlbox.job.gate_plan import FilePlan, LinePlan
from rlbox.job.plan import StagePlan


def tell_gate(stage: StagePlan) -> list[str]:
    """Return what the gate of a stage asks, a line for each rule; exit code 0 goes without saying."""
    told = [f"{rule.log} holds /{rule.pattern}/ {rule.count} times{_conditions(rule)}" for rule in stage.require]
    if stage.ordered:
        told.append("the first of these lines come in this order, log by log")
    told += [f"{rule.log} never holds /{rule.pattern}/{_conditions(rule)}" for rule in stage.forbid]
    told += [f"benign is /{benign_text(rule)}/" for rule in stage.benign]
    told += [f"metric {metric_text(rule)}" for rule in stage.metrics]
    told += [exit_text(stage)] if stage.exit_codes != (0,) else []
    told += [f"{probe_text(rule)} is answered as told" for rule in stage.probes]
    return told + [f"{rule.path} is there and whole{_file_conditions(rule)}" for rule in stage.files]


def _conditions(rule: LinePlan) -> str:
    conditions = [f"at most {rule.at_most}"] if rule.at_most is not None else []
    conditions += [f"within {rule.within_s:g} s"] if rule.within_s is not None else []
    conditions += [f"after /{rule.after}/"] if rule.after else []
    conditions += [f"until /{rule.until}/"] if rule.until else []
    return "".join(f", {condition}" for condition in conditions)


def _file_conditions(rule: FilePlan) -> str:
    conditions = [f"{rule.count} of them"] if rule.count > 1 else []
    conditions += [rule.format] if rule.format else []
    conditions += ["written by the stage"] if rule.newer else []
    return "".join(f", {condition}" for condition in conditions)
