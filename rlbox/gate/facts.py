"""The rules of a gate that facts decide, not lines: who finds a fact out says so of the rule, as it is here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlbox.gate.rules import Rule, exit_text, probe_text
from rlbox.job.gate_plan import FilePlan
from rlbox.job.plan import StagePlan


@dataclass(frozen=True, kw_only=True)
class FactRules:
    """One rule for each fact that a stage is asked for; `needs`, `probes` and `files` in the order of its plan.

    `ports` are by service and name of the port, `services` by name. `ray` is there for a stage that is a Ray job.
    """

    needs: tuple[Rule, ...]
    ports: Mapping[tuple[str, str], Rule]
    services: Mapping[str, Rule]
    exit: Rule
    ray: Rule | None
    probes: tuple[Rule, ...]
    files: tuple[Rule, ...]
    silence: Rule
    total: Rule

    def before(self) -> list[Rule]:
        """Return those that are decided before the command of the stage is started, in that order."""
        return [*self.needs, *self.ports.values(), *self.services.values()]

    def after(self) -> list[Rule]:
        """Return those that are decided by the command and at its end."""
        return [self.exit, *([self.ray] if self.ray else []), *self.probes, *self.files, self.silence, self.total]


def fact_rules(stage: StagePlan) -> FactRules:
    """Return the rules of a stage, all of them waiting."""
    return FactRules(
        needs=tuple(Rule("need", need.path) for need in stage.needs),
        ports={
            (service.name, name): Rule("port", f"{name} {number}")
            for service in stage.services
            for name, number in service.ports.items()
        },
        services={service.name: Rule("service", service.name) for service in stage.services},
        exit=Rule("exit", exit_text(stage)),
        ray=Rule("ray", "job SUCCEEDED") if stage.ray else None,
        probes=tuple(Rule("probe", probe_text(probe)) for probe in stage.probes),
        files=tuple(Rule("file", _file_text(file)) for file in stage.files),
        silence=Rule("silence", f"at most {stage.silence_s:g} s"),
        total=Rule("total", f"at most {stage.total_s:g} s"),
    )


def _file_text(file: FilePlan) -> str:
    return file.path if file.count == 1 else f"{file.path} (at least {file.count})"
