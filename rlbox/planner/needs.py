"""What a job's stages need, by its table `[fits]` and the parameters of one run, beside what a machine has room for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from rlbox.amounts import GIB, decimal_size_text, gpu_gib_or_mib_text
from rlbox.errors import SpecError
from rlbox.i18n import EnglishMessage, _, join, ngettext, render_message
from rlbox.job.expression import ExpressionValue, evaluate_expression
from rlbox.job.fits import CARD, JobRequirements
from rlbox.job.job import Job
from rlbox.job.param import Scalar
from rlbox.job.params import DEFAULT, ParamValues, replace_hub_placeholders_with_repos
from rlbox.job.plan import select_stages
from rlbox.target.target import Target

_REPORTED = 0.97
"""Part of its nominal memory that a card reports at least."""
_KNOWN = {
    "NVIDIA GeForce RTX 5090": 31.8,
    "NVIDIA GeForce RTX 4090": 23.9,
    "NVIDIA RTX PRO 6000 Blackwell": 95.5,
    "NVIDIA A100": 80.0,
    "NVIDIA H100": 79.6,
    "NVIDIA H200": 140.4,
    "NVIDIA B200": 179.0,
}
"""GiB that cards report of what they are sold with. Source: nvidia-smi, 32,607 MiB of "32 GB", and so on."""
CONTEXT = 0.9 * GIB
"""Bytes of a card that CUDA's context and NCCL keep for themselves. Assumed, not measured."""
IDLE = GIB
"""Bytes of a card that its driver and a display may hold while nobody computes on it. Assumed, not measured."""

_MACHINE = re.compile(r"(?:(\d+)x)?(\d+)x(\d+(?:\.\d+)?)")


CountOrMinus1ForAll = int
BytesOr0IfUnknown = float
BytesByPart = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What there is; bytes, of one machine and one GPU. 0 says that nobody knows; -1 GPUs are all, however many.

    `source_label` is said when something does not fit; `used_bytes_of_fullest_gpu` is what others hold of the fullest
    GPU. `source` says who told of it: the target, a measurement, or a machine of the command line.
    """

    source_label: str
    source: Literal["target", "measured", "command_line"] = "target"
    nodes: int = 1
    gpus_per_node: CountOrMinus1ForAll = 0
    bytes_per_gpu: BytesOr0IfUnknown = 0.0
    used_bytes_of_fullest_gpu: float = 0.0
    host_bytes_per_node: BytesOr0IfUnknown = 0.0
    disk_bytes: BytesOr0IfUnknown = 0.0


def estimate_reported_gpu_bytes(gpu_name: str, nominal_gib: float) -> float:
    known = _KNOWN.get(gpu_name, 0.0)
    # a target may say of its card what the card itself does
    return GIB * (min(known, nominal_gib) if known else nominal_gib * _REPORTED)


def get_declared_capacity(target: Target, gpus_per_node: int) -> Capacity:
    """A `need_gib` of 1, the default, says nothing of the disk."""
    hardware = target.hardware
    limits = [size for size in (hardware.memory_gib, target.run.memory_gib) if size]
    return Capacity(
        source_label=f"images/{target.name}/target.toml",
        nodes=hardware.nodes,
        gpus_per_node=gpus_per_node,
        bytes_per_gpu=estimate_reported_gpu_bytes(hardware.gpu, hardware.gpu_memory_gib),
        host_bytes_per_node=GIB * min(limits, default=0.0),
        disk_bytes=GIB * target.disk.need_gib if target.disk.need_gib > 1 else 0.0,
    )


def parse_machine_capacity(optional_nodes_x_gpus_x_gb: str, host_and_disk: Capacity) -> Capacity:
    """Return the capacity of `4x32` (GPUs x GB of a card) or `2x8x80` (nodes too)."""
    found = _MACHINE.fullmatch(optional_nodes_x_gpus_x_gb)
    if not found or not all(float(part) for part in found.groups() if part):
        raise SpecError(
            _("invalid --machine {text!r}").format(text=optional_nodes_x_gpus_x_gb),
            next_step=_("use GPUSxGB: 4x32, 2x8x80 for two nodes"),
        )
    nodes, gpus, sold = found.groups()
    # 31.8 of 32 GB, sold as either, is what the table knows; any other card has its least
    known = "NVIDIA GeForce RTX 5090"
    card = estimate_reported_gpu_bytes(known if _KNOWN[known] <= float(sold) <= 32 else "", float(sold))
    return Capacity(
        source_label=f"--machine {optional_nodes_x_gpus_x_gb}",
        source="command_line",
        nodes=int(nodes or 1),
        gpus_per_node=int(gpus),
        bytes_per_gpu=card,
        host_bytes_per_node=host_and_disk.host_bytes_per_node,
        disk_bytes=host_and_disk.disk_bytes,
    )


_SIZE_IN_NAME = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)b(?![a-z])", re.I)
_SIZE_TOLERANCE = 0.3


@dataclass(frozen=True, kw_only=True)
class StageNeeds:
    """What one stage needs: bytes by part, and the sentences of its rules that do not hold."""

    stage: str
    nodes: int = 1
    gpus: int = 0
    card: BytesByPart = field(default_factory=dict)
    host: BytesByPart = field(default_factory=dict)
    disk: BytesByPart = field(default_factory=dict)
    unmet_rules: tuple[str, ...] = ()

    @property
    def needed_bytes_per_gpu(self) -> float:
        """Memory of the fullest GPU."""
        return sum(self.card.values())

    @property
    def needed_host_bytes(self) -> float:
        return sum(self.host.values())


@dataclass(frozen=True, kw_only=True)
class RunNeeds:
    """What a run needs, stage by stage.

    `unsized_models` say of which models nobody told the size, `mismatched_model_sizes` whose size is that of another
    model.
    """

    stages: tuple[StageNeeds, ...] = ()
    unsized_models: tuple[str, ...] = ()
    mismatched_model_sizes: tuple[str, ...] = ()

    @property
    def disk_bytes_by_stage_part(self) -> dict[str, float]:
        return {f"{row.stage}.{part}": size for row in self.stages for part, size in row.disk.items() if size}

    @property
    def total_disk_bytes(self) -> float:
        """What all stages leave on the data disk."""
        return sum(self.disk_bytes_by_stage_part.values())


class FitsFormulaEvaluator:
    """The formulas of a job's `[fits]` over the parameters of one run; each raises `SpecError` when it has no value.

    They may name parameters, `card` (`bytes_per_gpu`, 0: not known), and the amounts of `let`.
    """

    def __init__(self, job: Job, params: Mapping[str, Scalar], bytes_per_gpu: float) -> None:
        self._job = job.name
        self._variables: dict[str, ExpressionValue] = {**params, CARD: bytes_per_gpu}
        for name, formula in job.fits.let.items() if job.fits else ():
            self._variables[name] = self.evaluate(f"let.{name}", formula)

    def evaluate(self, key_for_errors: str, formula: str) -> ExpressionValue:
        try:
            return evaluate_expression(formula, self._variables)
        except ValueError as error:
            raise SpecError(
                _("jobs/{job}.toml: fits.{where}: {error}").format(job=self._job, where=key_for_errors, error=error)
            ) from error

    def evaluate_number_zero_if_text(self, key_for_errors: str, formula: str) -> float:
        value = self.evaluate(key_for_errors, formula)
        return 0.0 if isinstance(value, str) else float(value)

    def fill_in_variables(self, sentence: str) -> EnglishMessage:
        """Return a sentence with its `{NAME}` replaced; numbers are whole where they are."""

        def shown(found: re.Match[str]) -> str:
            value = self._variables.get(found[1], found[0])
            return f"{value:g}" if isinstance(value, float) else str(value)

        return render_message(sentence, lambda text: re.sub(r"\{(\w+)\}", shown, text))


def compute_run_needs(job: Job, values: ParamValues, bytes_per_gpu: float) -> RunNeeds | None:
    """Return what a run of `job` needs; None for a job that says nothing of it.

    `bytes_per_gpu` is what the driver tells, of which engines take shares; 0: not known.
    """
    if job.fits is None:
        return None
    values = replace(values, params=replace_hub_placeholders_with_repos(job, values.params))
    formulas = FitsFormulaEvaluator(job, values.params, bytes_per_gpu)
    chosen = {stage.name for stage in select_stages(job, values.profile)}
    stages = tuple(_evaluate_stage(job.fits, name, formulas) for name in job.fits.stages if name in chosen)
    unsized, wrong = _check_model_sizes(job.fits, values)
    return RunNeeds(stages=stages, unsized_models=tuple(unsized), mismatched_model_sizes=tuple(wrong))


def _evaluate_stage(fits: JobRequirements, name: str, formulas: FitsFormulaEvaluator) -> StageNeeds:
    row, key = fits.stages[name], f"stages.{name}"

    def evaluate_parts(kind: str, parts: Mapping[str, str]) -> dict[str, float]:
        return {
            part: formulas.evaluate_number_zero_if_text(f"{key}.{kind}.{part}", formula)
            for part, formula in parts.items()
        }

    return StageNeeds(
        stage=name,
        nodes=int(formulas.evaluate_number_zero_if_text(f"{key}.nodes", row.nodes)),
        gpus=int(formulas.evaluate_number_zero_if_text(f"{key}.gpus", row.gpus)),
        card=evaluate_parts("card", row.card),
        host=evaluate_parts("host", row.host),
        disk=evaluate_parts("disk", row.disk),
        unmet_rules=tuple(
            formulas.fill_in_variables(rule.says)
            for number, rule in enumerate(row.rules)
            if not formulas.evaluate(f"{key}.rules[{number}].holds", rule.holds)
        ),
    )


def _check_model_sizes(fits: JobRequirements, values: ParamValues) -> tuple[list[str], list[str]]:
    unsized, wrong = [], []
    for size, model in fits.size.items():
        billions, name = float(values.params[size]), str(values.params[model])
        size_origin, origin = values.origins.get(size, DEFAULT), values.origins.get(model, DEFAULT)
        in_name = [float(found) for found in _SIZE_IN_NAME.findall(name)]  # `Qwen2.5-Coder-7B` for 7.6
        is_in_name = any(abs(other - billions) <= _SIZE_TOLERANCE * billions for other in in_name)
        if not billions:
            unsized.append(_("{size} = 0: the size of {name} is not given").format(size=size, name=name))
        elif origin != DEFAULT and size_origin == DEFAULT and not is_in_name:
            wrong.append(
                _("{size} is still {billions}, which nobody says of {name} ({model}, {origin})").format(
                    size=size, billions=f"{billions:g}", name=name, model=model, origin=origin
                )
            )
    return unsized, wrong


class Shortage(NamedTuple):
    """One thing that does not fit, in a sentence; of the whole run, `stage` is empty."""

    kind: Literal["gpus", "nodes", "card", "host", "disk", "rule", "size"]
    stage: str
    text: str


def find_shortages(needs: RunNeeds, room: Capacity) -> tuple[Shortage, ...]:
    """Return what of `needs` the machine has not; what nobody knows of the machine is not judged."""
    found = [Shortage("size", "", text) for text in needs.mismatched_model_sizes]
    for row in needs.stages:
        found += _check_stage(row, room)
    if room.disk_bytes and needs.total_disk_bytes > room.disk_bytes:
        text = _describe_lack(_("the data disk"), needs.disk_bytes_by_stage_part, room.disk_bytes, decimal_size_text)
        found.append(Shortage("disk", "", text))
    return tuple(found)


def describe_unchecked_needs(needs: RunNeeds, room: Capacity) -> tuple[str, ...]:
    kinds = {
        _("memory of a GPU"): (room.bytes_per_gpu, any(row.needed_bytes_per_gpu for row in needs.stages)),
        _("host memory"): (room.host_bytes_per_node, any(row.needed_host_bytes for row in needs.stages)),
        _("data disk"): (room.disk_bytes, needs.total_disk_bytes),
    }
    unknown = [
        _("{kind}: {source} does not say it").format(kind=kind, source=room.source_label)
        for kind, (have, asked) in kinds.items()
        if asked and not have
    ]
    return (*unknown, *needs.unsized_models)


def _check_stage(row: StageNeeds, room: Capacity) -> Iterator[Shortage]:
    yield from (Shortage("rule", row.stage, text) for text in row.unmet_rules)
    if row.nodes > room.nodes:
        text = _("{nodes} nodes, there are {room_nodes}").format(nodes=row.nodes, room_nodes=room.nodes)
        yield Shortage("nodes", row.stage, text)
    if 0 <= room.gpus_per_node < row.gpus:
        text = ngettext(
            "{count} GPU of a machine, there are {room_gpus}",
            "{count} GPUs of a machine, there are {room_gpus}",
            row.gpus,
        ).format(count=row.gpus, room_gpus=room.gpus_per_node)
        text += "" if room.gpus_per_node else _("; the target names none: hardware.gpu, or --gpus")
        yield Shortage("gpus", row.stage, text)
    free = room.bytes_per_gpu - CONTEXT - room.used_bytes_of_fullest_gpu
    if room.bytes_per_gpu and row.needed_bytes_per_gpu and row.needed_bytes_per_gpu > free:
        total, context, others = map(gpu_gib_or_mib_text, (room.bytes_per_gpu, CONTEXT, room.used_bytes_of_fullest_gpu))
        text = _describe_lack(_("a GPU"), row.card, max(0.0, free), gpu_gib_or_mib_text)
        text = (
            _(
                "{text} ({total}, less {context} for CUDA's context and NCCL and {others} that other processes hold)"
            ).format(text=text, total=total, context=context, others=others)
            if room.used_bytes_of_fullest_gpu
            else _("{text} ({total}, less {context} for CUDA's context and NCCL)").format(
                text=text, total=total, context=context
            )
        )
        yield Shortage("card", row.stage, text)
    if room.host_bytes_per_node and row.needed_host_bytes > room.host_bytes_per_node:
        text = _describe_lack(_("host memory"), row.host, room.host_bytes_per_node, decimal_size_text)
        yield Shortage("host", row.stage, text)


def _describe_lack(
    what: str, bytes_by_part: Mapping[str, float], available: float, format_size: Callable[[float], str]
) -> str:
    largest = sorted(bytes_by_part.items(), key=lambda part: -part[1])[:4]
    shown = join(", ", (join(" ", (_(name.replace("_", " ")), format_size(size))) for name, size in largest if size))
    return _("{what}: {text} needed ({shown}), {text2} there").format(
        what=what, text=format_size(sum(bytes_by_part.values())), shown=shown, text2=format_size(available)
    )
