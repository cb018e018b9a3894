"""What a job's stages need of a machine, computed from its table `[fits]` and the parameters of one run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from rlbox.amounts import gpu_memory_text, size_text
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.job.expression import Amount, evaluate
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
    broken: tuple[str, ...] = ()

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
    """What a run needs, stage by stage; `unsized` says which model's size nobody told."""

    stages: tuple[StageNeeds, ...] = ()
    unsized: tuple[str, ...] = ()

    @property
    def disk(self) -> dict[str, float]:
        """Return what all stages leave on the data disk, by stage and part."""
        return {f"{row.stage}.{part}": size for row in self.stages for part, size in row.disk.items() if size}

    @property
    def disk_bytes(self) -> float:
        """What all stages leave on the data disk."""
        return sum(self.disk.values())


def compute_needs(job: Job, values: ParamValues, card_bytes: float) -> RunNeeds | None:
    """Return what a run of `job` needs; None for a job that says nothing of it.

    Parameters
    ----------
    card_bytes
        Memory of one GPU as its driver tells it, of which engines take shares; 0: not known.

    Raises
    ------
    SpecError
        A formula has no value, as for a division by zero.
    """
    if job.fits is None:
        return None
    names = compute_amounts(job, values.params, card_bytes)
    chosen = {stage.name for stage in select_stages(job, values.profile)}
    stages = tuple(_stage(job, name, row, names) for name, row in job.fits.stages.items() if name in chosen)
    return RunNeeds(stages=stages, unsized=tuple(_unsized(job.fits, values)))


def compute_amounts(job: Job, params: Mapping[str, Scalar], card_bytes: float) -> dict[str, Amount]:
    """Return what formulas of a job's `[fits]` may name: parameters, `card`, and the amounts of `let`."""
    names: dict[str, Amount] = {**params, CARD: card_bytes}
    for name, formula in job.fits.let.items() if job.fits else ():
        names[name] = _amount(job, f"let.{name}", formula, names)
    return names


def compute_stage_amount(job: Job, stage: str, key: str, formula: str, names: Mapping[str, Amount]) -> float:
    """Return the value of a formula of one stage; `SpecError` when it has none."""
    return _number(_amount(job, f"stages.{stage}.{key}", formula, names))


def _stage(job: Job, name: str, row: StageFits, names: Mapping[str, Amount]) -> StageNeeds:
    def amount(key: str, formula: str) -> Amount:
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
        broken=tuple(_filled(says, names) for says, holds in rules if not holds),
    )


def _amount(job: Job, where: str, formula: str, names: Mapping[str, Amount]) -> Amount:
    try:
        return evaluate(formula, names)
    except ValueError as error:
        raise SpecError(
            _("jobs/{job}.toml: fits.{where}: {error}").format(job=job.name, where=where, error=error)
        ) from error


def _number(value: Amount) -> float:
    return 0.0 if isinstance(value, str) else float(value)


def _filled(text: str, names: Mapping[str, Amount]) -> str:
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
    found = [Shortage(kind="size", stage="", text=text) for text in needs.unsized if " = 0:" not in text]
    for row in needs.stages:
        found += _check_stage(row, room)
    if room.disk and needs.disk_bytes > room.disk:
        found.append(Shortage(kind="disk", stage="", text=_text("the data disk", needs.disk, room.disk)))
    return tuple(found)


def list_unchecked(needs: RunNeeds, room: Capacity) -> tuple[str, ...]:
    """Return what was not looked at, and why."""
    kinds = {
        "memory of a GPU": (room.card, any(row.card_bytes for row in needs.stages)),
        "host memory": (room.host, any(row.host_bytes for row in needs.stages)),
        "data disk": (room.disk, needs.disk_bytes),
    }
    found = [f"{kind}: {room.where} does not say it" for kind, (have, asked) in kinds.items() if asked and not have]
    return (*found, *(text for text in needs.unsized if " = 0:" in text))


def _check_stage(row: StageNeeds, room: Capacity) -> Iterator[Shortage]:
    yield from (Shortage(kind="rule", stage=row.stage, text=text) for text in row.broken)
    if row.nodes > room.nodes:
        yield Shortage(
            kind="nodes",
            stage=row.stage,
            text=_("{nodes} nodes, there are {room_nodes}").format(nodes=row.nodes, room_nodes=room.nodes),
        )
    if room.gpus >= 0 and row.gpus > room.gpus:
        asked = f"1 GPU of a machine, there are {room.gpus}"
        asked = asked if row.gpus == 1 else f"{row.gpus} GPUs of a machine, there are {room.gpus}"
        none = () if room.gpus else ("the target names none: hardware.gpu, or --gpus",)
        yield Shortage(kind="gpus", stage=row.stage, text="; ".join((asked, *none)))
    free = room.card - CONTEXT - room.taken
    if room.card and row.card_bytes and row.card_bytes > free:
        others = f" and {gpu_memory_text(room.taken)} that other processes hold" if room.taken else ""
        kept = f" ({gpu_memory_text(room.card)}, less {gpu_memory_text(CONTEXT)} for CUDA's context and NCCL{others})"
        text = _text("a GPU", row.card, max(0.0, free), gpu_memory_text) + kept
        yield Shortage(kind="card", stage=row.stage, text=text)
    if room.host and row.host_bytes > room.host:
        yield Shortage(kind="host", stage=row.stage, text=_text("host memory", row.host, room.host))


def _text(what: str, parts: Mapping[str, float], have: float, text: Callable[[float], str] = size_text) -> str:
    most = sorted(parts.items(), key=lambda part: -part[1])[:4]
    shown = ", ".join(f"{name.replace('_', ' ')} {text(size)}" for name, size in most if size)
    return _("{what}: {text} needed ({shown}), {text2} there").format(
        what=what, text=text(sum(parts.values())), shown=shown, text2=text(have)
    )
