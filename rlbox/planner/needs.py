"""What a job's stages need of a machine, computed from its table `[fits]` and the parameters of one run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from rlbox.amounts import decimal_size_text, gpu_memory_text
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.job.expression import ExpressionValue, evaluate_expression
from rlbox.job.fits import CARD, Fits, StageFits
from rlbox.job.job import Job
from rlbox.job.param import Scalar
from rlbox.job.params import DEFAULT, ParamValues
from rlbox.job.plan import select_stages
from rlbox.planner.capacity import CONTEXT, Capacity

_SIZE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)b(?![a-z])", re.I)
_NAMED = re.compile(r"\{(\w+)\}")
_ABOUT = 0.3


@dataclass(frozen=True, kw_only=True)
class StageNeeds:
    """What one stage needs: bytes by part, and the sentences of its rules that do not hold."""

    stage: str
    nodes: int = 1
    gpus: int = 0
    card: Mapping[str, float] = field(default_factory=dict)
    host: Mapping[str, float] = field(default_factory=dict)
    disk: Mapping[str, float] = field(default_factory=dict)
    unmet_rules: tuple[str, ...] = ()

    @property
    def card_bytes(self) -> float:
        """Memory of the fullest GPU."""
        return sum(self.card.values())

    @property
    def host_bytes(self) -> float:
        """Memory of a machine."""
        return sum(self.host.values())


@dataclass(frozen=True, kw_only=True)
class RunNeeds:
    """What a run needs, stage by stage; `model_size_faults` says which model's size nobody told."""

    stages: tuple[StageNeeds, ...] = ()
    model_size_faults: tuple[str, ...] = ()

    @property
    def disk_bytes_by_stage_part(self) -> dict[str, float]:
        """Return what all stages leave on the data disk, by stage and part."""
        return {f"{row.stage}.{part}": size for row in self.stages for part, size in row.disk.items() if size}

    @property
    def total_disk_bytes(self) -> float:
        """What all stages leave on the data disk."""
        return sum(self.disk_bytes_by_stage_part.values())


def evaluate_fits(job: Job, values: ParamValues, bytes_per_gpu: float) -> RunNeeds | None:
    """Return what a run of `job` needs; None for a job that says nothing of it.

    Parameters
    ----------
    bytes_per_gpu
        Memory of one GPU as its driver tells it, of which engines take shares; 0: not known.

    Raises
    ------
    SpecError
        A formula has no value, as for a division by zero.
    """
    if job.fits is None:
        return None
    names = build_formula_variables(job, values.params, bytes_per_gpu)
    chosen = {stage.name for stage in select_stages(job, values.profile)}
    stages = tuple(_stage(job, name, row, names) for name, row in job.fits.stages.items() if name in chosen)
    return RunNeeds(stages=stages, model_size_faults=tuple(_unsized(job.fits, values)))


def build_formula_variables(job: Job, params: Mapping[str, Scalar], bytes_per_gpu: float) -> dict[str, ExpressionValue]:
    """Return what formulas of a job's `[fits]` may name: parameters, `card`, and the amounts of `let`."""
    names: dict[str, ExpressionValue] = {**params, CARD: bytes_per_gpu}
    for name, formula in job.fits.let.items() if job.fits else ():
        names[name] = _amount(job, f"let.{name}", formula, names)
    return names


def evaluate_stage_formula(
    job: Job, stage: str, key_for_errors: str, formula: str, variables: Mapping[str, ExpressionValue]
) -> float:
    """Return the value of a formula of one stage; raise `SpecError` when it has none."""
    return _number(_amount(job, f"stages.{stage}.{key_for_errors}", formula, variables))


def _stage(job: Job, name: str, row: StageFits, names: Mapping[str, ExpressionValue]) -> StageNeeds:
    def amount(key: str, formula: str) -> ExpressionValue:
        return _amount(job, f"stages.{name}.{key}", formula, names)

    def parts(kind: str, formulas: Mapping[str, str]) -> dict[str, float]:
        return {part: _number(amount(f"{kind}.{part}", formula)) for part, formula in formulas.items()}

    rules = ((rule.says, amount(f"rules[{number}].holds", rule.holds)) for number, rule in enumerate(row.rules))
    return StageNeeds(
        stage=name,
        nodes=int(_number(amount("nodes", row.nodes))),
        gpus=int(_number(amount("gpus", row.gpus))),
        card=parts("card", row.card),
        host=parts("host", row.host),
        disk=parts("disk", row.disk),
        unmet_rules=tuple(_filled(says, names) for says, holds in rules if not holds),
    )


def _amount(job: Job, where: str, formula: str, names: Mapping[str, ExpressionValue]) -> ExpressionValue:
    try:
        return evaluate_expression(formula, names)
    except ValueError as error:
        raise SpecError(
            _("jobs/{job}.toml: fits.{where}: {error}").format(job=job.name, where=where, error=error)
        ) from error


def _number(value: ExpressionValue) -> float:
    return 0.0 if isinstance(value, str) else float(value)


def _filled(text: str, names: Mapping[str, ExpressionValue]) -> str:
    """Return a sentence with its `{NAME}` replaced; numbers are whole where they are."""

    def shown(found: re.Match[str]) -> str:
        value = names.get(found[1], found[0])
        return f"{value:g}" if isinstance(value, float) else str(value)

    return _NAMED.sub(shown, text)


def _unsized(fits: Fits, values: ParamValues) -> list[str]:
    """Return a sentence for each model that is another than the one whose size is told."""
    found = []
    for size, model in fits.size.items():
        billions, name = float(values.params[size]), str(values.params[model])
        told, named = values.origins.get(size, DEFAULT), values.origins.get(model, DEFAULT)
        if not billions:
            found.append(f"{size} = 0: nobody says how large {name} is")
        elif named != DEFAULT and told == DEFAULT and not _says(name, billions):
            found.append(f"{size} is still {billions:g}, which nobody says of {name} ({model}, {named})")
    return found


def _says(name: str, billions: float) -> bool:
    """Whether a model's name says about that size: `Qwen2.5-Coder-7B` for 7.6."""
    sizes = [float(found) for found in _SIZE.findall(name)]
    return any(abs(size - billions) <= _ABOUT * billions for size in sizes)


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """One thing that does not fit; `kind` is gpus, nodes, card, host, disk, rule or size, `text` the sentence."""

    kind: Literal["gpus", "nodes", "card", "host", "disk", "rule", "size"]
    stage: str
    text: str


def find_shortages(needs: RunNeeds, room: Capacity) -> tuple[Shortage, ...]:
    """Return what of `needs` the machine has not; what nobody knows of the machine is not judged."""
    found = [Shortage(kind="size", stage="", text=text) for text in needs.model_size_faults if " = 0:" not in text]
    for row in needs.stages:
        found += _check_stage(row, room)
    if room.disk_bytes and needs.total_disk_bytes > room.disk_bytes:
        text = _text("the data disk", needs.disk_bytes_by_stage_part, room.disk_bytes)
        found.append(Shortage(kind="disk", stage="", text=text))
    return tuple(found)


def describe_unchecked_needs(needs: RunNeeds, room: Capacity) -> tuple[str, ...]:
    """Return what was not looked at, and why."""
    kinds = {
        "memory of a GPU": (room.bytes_per_gpu, any(row.card_bytes for row in needs.stages)),
        "host memory": (room.host_bytes_per_node, any(row.host_bytes for row in needs.stages)),
        "data disk": (room.disk_bytes, needs.total_disk_bytes),
    }
    found = [
        f"{kind}: {room.source_label} does not say it" for kind, (have, asked) in kinds.items() if asked and not have
    ]
    return (*found, *(text for text in needs.model_size_faults if " = 0:" in text))


def _check_stage(row: StageNeeds, room: Capacity) -> Iterator[Shortage]:
    yield from (Shortage(kind="rule", stage=row.stage, text=text) for text in row.unmet_rules)
    if row.nodes > room.nodes:
        yield Shortage(
            kind="nodes",
            stage=row.stage,
            text=_("{nodes} nodes, there are {room_nodes}").format(nodes=row.nodes, room_nodes=room.nodes),
        )
    if room.gpus_per_node >= 0 and row.gpus > room.gpus_per_node:
        asked = f"1 GPU of a machine, there are {room.gpus_per_node}"
        asked = asked if row.gpus == 1 else f"{row.gpus} GPUs of a machine, there are {room.gpus_per_node}"
        none = () if room.gpus_per_node else ("the target names none: hardware.gpu, or --gpus",)
        yield Shortage(kind="gpus", stage=row.stage, text="; ".join((asked, *none)))
    free = room.bytes_per_gpu - CONTEXT - room.used_bytes_of_fullest_gpu
    if room.bytes_per_gpu and row.card_bytes and row.card_bytes > free:
        total, context, others = map(gpu_memory_text, (room.bytes_per_gpu, CONTEXT, room.used_bytes_of_fullest_gpu))
        held = f" and {others} that other processes hold" if room.used_bytes_of_fullest_gpu else ""
        kept = f" ({total}, less {context} for CUDA's context and NCCL{held})"
        text = _text("a GPU", row.card, max(0.0, free), gpu_memory_text) + kept
        yield Shortage(kind="card", stage=row.stage, text=text)
    if room.host_bytes_per_node and row.host_bytes > room.host_bytes_per_node:
        yield Shortage(kind="host", stage=row.stage, text=_text("host memory", row.host, room.host_bytes_per_node))


def _text(what: str, parts: Mapping[str, float], have: float, text: Callable[[float], str] = decimal_size_text) -> str:
    most = sorted(parts.items(), key=lambda part: -part[1])[:4]
    shown = ", ".join(f"{name.replace('_', ' ')} {text(size)}" for name, size in most if size)
    return _("{what}: {text} needed ({shown}), {text2} there").format(
        what=what, text=text(sum(parts.values())), shown=shown, text2=text(have)
    )
