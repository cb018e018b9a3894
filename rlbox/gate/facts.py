"""The rules of a gate that facts decide, not lines: who finds a fact out says so of the rule, as it is here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlbox.gate.rules import GateRule, exit_text, probe_text
from rlbox.job.gate_plan import FilePlan
from rlbox.job.plan import StagePlan


@dataclass(frozen=True, kw_only=True)
class FactRules:
    """One rule for each fact that a stage is asked for; `needs`, `probes` and `files` in the order of its plan.

    `ports` are by service and name of the port, `services` by name. `ray` is there for a stage that is a Ray job.
    """

    needs: tuple[GateRule, ...]
    ports: Mapping[tuple[str, str], GateRule]
    services: Mapping[str, GateRule]
    exit: GateRule
    ray: GateRule | None
    probes: tuple[GateRule, ...]
    files: tuple[GateRule, ...]
    silence: GateRule
    total: GateRule

    def before(self) -> list[GateRule]:
        """Return those that are decided before the command of the stage is started, in that order."""
        return [*self.needs, *self.ports.values(), *self.services.values()]

    def after(self) -> list[GateRule]:
        """Return those that are decided by the command and at its end."""
        return [self.exit, *([self.ray] if self.ray else []), *self.probes, *self.files, self.silence, self.total]


def fact_rules(stage: StagePlan) -> FactRules:
    """Return the rules of a stage, all of them waiting."""
    return FactRules(
        needs=tuple(GateRule("need", need.path) for need in stage.needs),
        ports={
            (service.name, name): GateRule("port", f"{name} {number}")
            for service in stage.services
            for name, number in service.ports.items()
        },
        services={service.name: GateRule("service", service.name) for service in stage.services},
        exit=GateRule("exit", exit_text(stage)),
        ray=GateRule("ray", "job SUCCEEDED") if stage.ray else None,
        probes=tuple(GateRule("probe", probe_text(probe)) for probe in stage.probes),
        files=tuple(GateRule("file", _file_text(file)) for file in stage.files),
        silence=GateRule("silence", f"at most {stage.silence_s:g} s"),
        total=GateRule("total", f"at most {stage.total_s:g} s"),
    )


def _file_text(file: FilePlan) -> str:
    conditions = [f"at least {file.count}"] if file.count > 1 else []
    conditions += [file.format] if file.format else []
    conditions += ["written by the stage"] if file.newer else []
    return f"{file.path} ({', '.join(conditions)})" if conditions else file.path
