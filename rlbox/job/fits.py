"""What a job says of the machine that it needs: the table `[fits]`, in bytes, made of its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pydantic import Field

from rlbox.config.schema import Name, SingleLine, SpecModel, did_you_mean_hint
from rlbox.i18n import _
from rlbox.job.expression import Expression, find_variable_names
from rlbox.job.param import Param, ParamName

CARD = "card"
"""What a formula calls the memory of one GPU in bytes, as its driver tells it; 0 where nobody says."""


class Precondition(SpecModel):
    """Arithmetic that a program asserts, or that nothing good comes of: asked before it starts."""

    holds: Expression = Field(description="formula that must be true")
    says: SingleLine = Field(description="error message if it is false; {NAME} inserts a parameter or an amount")


class StageRequirements(SpecModel):
    """What one stage needs. Parts of a table add up; a job's stages share all but the disk, on which theirs add up."""

    nodes: Expression = Field("1", description="number of nodes, a formula")
    gpus: Expression = Field("0", description="GPUs of each node, a formula")
    card: dict[ParamName, Expression] = Field(
        default_factory=dict, description="memory of the fullest GPU, bytes, by part; parts are added"
    )
    host: dict[ParamName, Expression] = Field(
        default_factory=dict, description="host memory of a node, bytes, by part; parts are added"
    )
    disk: dict[ParamName, Expression] = Field(
        default_factory=dict, description="space that its files take on the data disk, bytes, by part; parts are added"
    )
    rules: tuple[Precondition, ...] = Field((), description="conditions that must be true before the job starts")
    hours: tuple[()] | tuple[Expression, Expression] = Field(
        (), description="assumed minimum and maximum hours, until a run was measured; empty: unknown"
    )

    def iter_keys_and_formulas(self) -> Iterator[tuple[str, str]]:
        yield from (("nodes", self.nodes), ("gpus", self.gpus))
        yield from (("hours", formula) for formula in self.hours)
        for kind in ("card", "host", "disk"):
            yield from ((f"{kind}.{part}", formula) for part, formula in getattr(self, kind).items())
        yield from ((f"rules[{number}].holds", rule.holds) for number, rule in enumerate(self.rules))


class JobRequirements(SpecModel):
    """What the stages of a job need of their machines, and what may be turned when that is not there."""

    size: dict[ParamName, ParamName] = Field(
        default_factory=dict, description="size parameter (billions) to model parameter; set both for another model"
    )
    turn: tuple[ParamName, ...] = Field(
        (), description="parameters that rlbox may change in a suggestion, the cheapest first"
    )
    let: dict[ParamName, Expression] = Field(
        default_factory=dict, description="named amounts for formulas; each can use earlier ones"
    )
    stages: dict[Name, StageRequirements] = Field(default_factory=dict, description="requirements by stage name")


def find_fits_formula_problems(fits: JobRequirements, params: Mapping[str, Param], stages: Iterable[str]) -> list[str]:
    known = {*params, CARD}
    problems = [
        _("fits.{where}: {name!r} is not a parameter{suggest}").format(
            where=where, name=name, suggest=did_you_mean_hint(name, list(params))
        )
        for where, names in (("size", (*fits.size, *fits.size.values())), ("turn", fits.turn))
        for name in names
        if name not in params
    ]
    for name, formula in fits.let.items():
        problems += [_("fits.let.{name}: the name is taken").format(name=name)] if name in known else []
        problems += _find_unknown(f"fits.let.{name}", formula, known)
        known.add(name)
    for stage, table in fits.stages.items():
        if stage not in set(stages):
            problems.append(
                _("fits.stages.{stage}: the job has no such stage{suggest}").format(
                    stage=stage, suggest=did_you_mean_hint(stage, list(stages))
                )
            )
        for key, formula in table.iter_keys_and_formulas():
            problems += _find_unknown(f"fits.stages.{stage}.{key}", formula, known)
    return problems


def _find_unknown(where: str, formula: str, known: set[str]) -> list[str]:
    unknown = sorted(find_variable_names(formula) - known)
    return [
        _("{where}: {name!r} is neither a parameter nor an amount{suggest}").format(
            where=where, name=name, suggest=did_you_mean_hint(name, list(known))
        )
        for name in unknown
    ]
