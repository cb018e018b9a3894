"""Whether a run fits, and the nearest that does; how many hours it takes, and what they cost."""

from __future__ import annotations

import itertools
import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rlbox.amounts import GIB, align_translated, decimal_size_text, gpu_gib_or_mib_text
from rlbox.app import App
from rlbox.engine.gpu_access import parse_gpus_option
from rlbox.errors import MachineError, SpecError
from rlbox.i18n import _, join, translate
from rlbox.job.fits import JobRequirements, StageRequirements
from rlbox.job.job import Job, load_job
from rlbox.job.names import SOURCE_PARAM
from rlbox.job.param import Param, Scalar, format_scalar
from rlbox.job.params import SET, ParamValues, apply_overrides, replace_hub_placeholders_with_repos, resolve_params
from rlbox.job.plan import ProcessPaths, RunPlan, select_stages
from rlbox.planner.needs import (
    IDLE,
    Capacity,
    FitsFormulaEvaluator,
    RunNeeds,
    Shortage,
    compute_run_needs,
    describe_unchecked_needs,
    find_shortages,
    get_declared_capacity,
    parse_machine_capacity,
)
from rlbox.system.files import free_bytes_or_0
from rlbox.system.gpu import query_gpus_or_empty
from rlbox.system.limits import get_machine_total_memory_bytes
from rlbox.target.target import Target, load_target

_SOURCES = {"target": _("the target"), "measured": _("this machine"), "command_line": "--machine"}
_SHOWN = 0.05 * GIB
"""Bytes of a part that is shown: less reads 0.0 GiB."""


def needs_to_json(needs: RunNeeds, capacity: Capacity, shortages: Sequence[Shortage]) -> dict[str, Any]:
    keys = ("stage", "nodes", "gpus", "card", "host", "disk")
    have = {"nodes": capacity.nodes, "gpus": capacity.gpus_per_node, "card": capacity.bytes_per_gpu}
    return {
        "stages": [{key: getattr(row, key) for key in keys} for row in needs.stages],
        "room": {**have, "host": capacity.host_bytes_per_node, "disk": capacity.disk_bytes},
        "lacks": [lack._asdict() for lack in shortages],
        "not_judged": list(describe_unchecked_needs(needs, capacity)),
    }


def format_needs_lines(needs: RunNeeds, capacity: Capacity) -> list[str]:
    rows = [(_("stage"), _("nodes x GPUs"), _("a GPU"), _("host memory"), _("disk"))]
    for row in needs.stages:
        if row.gpus or row.card or row.host or row.disk:
            sizes = _format_sizes(row.needed_bytes_per_gpu, row.needed_host_bytes, sum(row.disk.values()))
            rows.append((row.stage, f"{row.nodes} x {row.gpus}" if row.gpus else "-", *sizes))
    gpus = _("all") if capacity.gpus_per_node < 0 else str(capacity.gpus_per_node)
    sizes = _format_sizes(capacity.bytes_per_gpu, capacity.host_bytes_per_node, capacity.disk_bytes)
    rows.append((_SOURCES[capacity.source], join(" x ", (capacity.nodes, gpus)), *sizes))
    unchecked = (_("not judged: {text}").format(text=text) for text in describe_unchecked_needs(needs, capacity))
    return [*align_translated(rows), *map(translate, unchecked)]


def _format_sizes(gpu_bytes: float, host_bytes: float, disk_bytes: float) -> tuple[str, str, str]:
    host, disk = (decimal_size_text(size) if size else "-" for size in (host_bytes, disk_bytes))
    return gpu_gib_or_mib_text(gpu_bytes) if gpu_bytes else "-", host, disk


def _part_lines(needs: RunNeeds) -> list[str]:
    rows = [
        (row.stage, kind, format_size(size), _(name.replace("_", " ")))
        for row in needs.stages
        for kind, parts, format_size in (
            (_("a GPU"), row.card, gpu_gib_or_mib_text),
            (_("host"), row.host, decimal_size_text),
            (_("disk"), row.disk, decimal_size_text),
        )
        for name, size in parts.items()
        if size >= _SHOWN
    ]
    return align_translated(rows) if rows else []


def format_shortages(nonempty_shortages: Sequence[Shortage]) -> str:
    lines = [join(": ", (lack.stage, lack.text)) if lack.stage else lack.text for lack in nonempty_shortages]
    return lines[0] if len(lines) == 1 else join("\n  ", [_("{count} problems").format(count=len(lines)), *lines])


_IMAGE = "/opt"
"""What an image brings of its own: trees to read, no place to write."""
_OWN = ("{data}", "{run}", "{job}")


def find_set_param_paths_off_data_disk(job: Job, values: ParamValues, paths: ProcessPaths) -> dict[str, str]:
    inside = (paths.data, paths.run, paths.job, _IMAGE)
    found = {}
    for name, value in values.params.items():
        if values.origins.get(name) != SET or not isinstance(value, str) or not value:
            continue
        if job.source and name == SOURCE_PARAM:  # read alone, and mounted
            continue
        ours = str(job.params[name].default or "").startswith(_OWN)
        if not (ours or value.startswith(("/", "~", "./", "../"))):
            continue
        plain = posixpath.normpath(value)
        if not any(plain == root or plain.startswith(f"{root}/") for root in map(posixpath.normpath, inside)):
            found[name] = value
    return found


_NEAR_STEPS = 64
"""How far from a whole number each one is tried; beyond that its halves and doubles."""


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    """Profiles and settings as a command line gives them, between words that stay as they are.

    A run that is taken up again has its parameters, `resumed_params`, and can take no profile.
    """

    command_words: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    option_words: tuple[str, ...] = ()
    resumed_params: ParamValues | None = None

    def to_argv_after_rlbox(self) -> tuple[str, ...]:
        named = [word for name in self.profiles for word in ("--profile", name)]
        settings = [word for pair in self.settings.items() for word in ("--set", "=".join(pair))]
        return (*self.command_words, *named, *settings, *self.option_words)

    def resolve_params(self, job: Job) -> ParamValues:
        if self.resumed_params:
            return apply_overrides(job, self.resumed_params, False, self.settings)
        return resolve_params(job, self.profiles, self.settings)


def suggest_fitting_command(job: Job, requested: RunCommand, capacity: Capacity) -> RunCommand | None:
    """Return a setting near to `requested` that fits `capacity`; None when none of what may be turned does.

    The model stays.
    """
    sizes = job.fits.size if job.fits else {}
    before = requested.resolve_params(job).params

    def fits(command: RunCommand) -> bool:
        try:
            values = command.resolve_params(job)
            result = check_fit(job, values, capacity)
        except SpecError:  # out of a parameter's range, or a formula without a value
            return False
        is_same_model = all(values.params[name] == before[name] for name in (*sizes, *sizes.values()))
        return is_same_model and result is not None and not result.shortages

    return next(filter(fits, _list_candidates(job, requested, before)), None)


def _list_candidates(job: Job, requested: RunCommand, before: Mapping[str, Scalar]) -> Iterator[RunCommand]:
    """Yield one parameter changed, other profiles, fewer settings, the defaults, at last two parameters changed."""
    # those that the command line set come last
    turned = sorted(job.fits.turn if job.fits else (), key=lambda name: name in requested.settings)
    for name in turned:
        for value in _list_other_values(job.params[name], before[name]):
            yield replace(requested, settings={**requested.settings, name: format_scalar(value)})
    others = [name for name in job.profiles if name not in requested.profiles and not requested.resumed_params]
    yield from (replace(requested, profiles=names) for names in ((), *((name,) for name in others)))
    yield from (replace(requested, profiles=(*requested.profiles, name)) for name in others if requested.profiles)
    for name in requested.settings:
        rest = {other: text for other, text in requested.settings.items() if other != name}
        yield replace(requested, settings=rest)
    yield from (replace(requested, settings={}), replace(requested, profiles=(), settings={}))
    halves_and_doubles = [
        [(name, format_scalar(value)) for value in _list_other_values(job.params[name], before[name], near_steps=0)]
        for name in turned
    ]
    for first, second in itertools.combinations(halves_and_doubles, 2):
        for pair in itertools.product(first, second):
            yield replace(requested, settings={**requested.settings, **dict(pair)})


def _list_other_values(param: Param, now: Scalar, near_steps: int = _NEAR_STEPS) -> Iterable[Scalar]:
    if isinstance(now, bool):
        return (not now,)
    if param.choices or isinstance(now, str):
        return tuple(choice for choice in param.choices if choice != now)
    numbers: list[int | float] = []
    if param.effective_type == "fraction":
        numbers = [round(now + sign * step / 20, 2) for step in range(1, 20) for sign in (-1, 1)]
    elif isinstance(now, int):
        numbers = [now + sign * step for step in range(1, near_steps) for sign in (-1, 1)]
        numbers += [now // 2**power for power in range(1, 12)] + [now * 2**power for power in range(1, 6)]
    return sorted((value for value in numbers if value > 0), key=lambda value: abs(value - now))


@dataclass(frozen=True, kw_only=True)
class FitResult:
    needs: RunNeeds
    capacity: Capacity
    shortages: tuple[Shortage, ...]

    @property
    def required_free_disk_gib_zero_if_short(self) -> float | None:
        """What the data disk must have free, GiB: nothing more where it lacks that; None: the job does not say."""
        if any(lack.kind == "disk" for lack in self.shortages):
            return 0.0
        return self.needs.total_disk_bytes / GIB or None


def load_declared_capacity(app: App, target: str, gpus_option: str) -> Capacity:
    spec = load_target(app.project, target).target
    hardware = spec.hardware
    request = parse_gpus_option(gpus_option, hardware.gpus or (-1 if hardware.gpu else 0))
    return get_declared_capacity(spec, len(request.ids) or request.count)


def replace_memory_and_disk_by_measured(
    app: App, target: str, declared: Capacity, data_dir: Path, gpus_option: str
) -> Capacity:
    """Limits of the target's own stay; of a number of GPUs the first ones are meant."""
    ids = parse_gpus_option(gpus_option, 0).ids
    cards = [gpu for gpu in query_gpus_or_empty() if gpu.total_bytes]
    chosen = [gpu for gpu in cards if str(gpu.index) in ids] or cards[
        : declared.gpus_per_node if declared.gpus_per_node > 0 else None
    ]
    fullest = min(chosen, key=lambda gpu: gpu.total_bytes - gpu.memory_bytes, default=None)
    limit = load_target(app.project, target).target.run.memory_gib * GIB
    return replace(
        declared,
        source_label=_("this machine, {data_dir}").format(data_dir=data_dir),
        source="measured",
        bytes_per_gpu=float(fullest.total_bytes if fullest else declared.bytes_per_gpu),
        used_bytes_of_fullest_gpu=float(fullest.memory_bytes if fullest and fullest.memory_bytes > IDLE else 0),
        host_bytes_per_node=float(min(limit or get_machine_total_memory_bytes(), get_machine_total_memory_bytes())),
        disk_bytes=float(free_bytes_or_0(data_dir)),
    )


def check_fit(job: Job, values: ParamValues, room: Capacity) -> FitResult | None:
    needs = compute_run_needs(job, values, room.bytes_per_gpu)
    return None if needs is None else FitResult(needs=needs, capacity=room, shortages=find_shortages(needs, room))


def require_fit(app: App, job: Job, fit: FitResult | None, requested: RunCommand, *, warn_only: bool = False) -> None:
    """`MachineError` names the nearest setting that fits; computed values may be wrong: `warn_only` says it only."""
    if fit is None or not fit.shortages:
        return
    if warn_only:
        shown = format_shortages(fit.shortages)
        app.print_status(_("warning: job {job} does not fit: {shown}").format(job=job.name, shown=shown))
        return
    raise MachineError(
        _("job {job} does not fit: {refusal}").format(job=job.name, refusal=format_shortages(fit.shortages)),
        where=fit.capacity.source_label,
        next_step=_suggest_next_step(job, fit, requested),
    )


def require_resume_fit_except_disk(
    app: App, job: Job, plan: RunPlan, command_line_settings: Mapping[str, str], *, warn_only: bool = False
) -> None:
    """What the run wrote is on the disk already. `plan` holds the `command_line_settings` of the command line."""
    values = ParamValues(profile=plan.profile, params=plan.params, origins=plan.origins)
    capacity = replace(load_declared_capacity(app, plan.target, plan.gpus), disk_bytes=0.0)
    fit = check_fit(job, values, capacity)
    requested = RunCommand(
        command_words=("run", "--resume", plan.run_id), settings=command_line_settings, resumed_params=values
    )
    require_fit(app, job, fit, requested, warn_only=warn_only)


def require_set_param_paths_on_data_disk(job: Job, values: ParamValues, paths: ProcessPaths) -> None:
    if found := find_set_param_paths_off_data_disk(job, values, paths):
        shown = ", ".join(f"--set {name}={value}" for name, value in found.items())
        raise SpecError(
            _(
                "{shown}: not on the data disk {data}; the system disk is small, and a container's is lost with it"
            ).format(shown=shown, data=paths.data),
            next_step=_("name a path below {data}").format(data=paths.data),
        )


def _suggest_next_step(job: Job, fit: FitResult, requested: RunCommand) -> str:
    if wrong_sizes := [lack for lack in fit.shortages if lack.kind == "size"]:
        name = wrong_sizes[0].text.partition(" ")[0]
        return _("--set {name}=N, its parameters in 10^9; 0: neither memory nor disk is judged").format(name=name)
    if nearest := suggest_fitting_command(job, requested, fit.capacity):
        return _("the nearest that fits: rlbox {words}").format(words=shlex.join(nearest.to_argv_after_rlbox()))
    return _(
        "no profile or tunable parameter of the job fits: use a larger machine, or another target with --target NAME"
    )


_PRICE = re.compile(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?")


@dataclass(frozen=True, kw_only=True)
class StageMeasurement:
    run: str
    stage: str
    seconds: float
    params: Mapping[str, Scalar]


@dataclass(frozen=True, kw_only=True)
class StageHours:
    """Hours of one stage, between `low` and `high`, and where they come from; both None: nobody knows."""

    stage: str
    low: float | None
    high: float | None
    basis: str
    measured: bool = False


class TotalHourlyPrice(NamedTuple):
    """Dollars an hour, of all GPUs together; `basis` says whose they are."""

    low_usd: float
    high_usd: float
    basis: str


class HoursRange(NamedTuple):
    low: float
    high: float


def parse_price_range(text: str) -> TotalHourlyPrice:
    found = _PRICE.fullmatch(text)
    low, high = (float(found[1]), float(found[2] or found[1])) if found else (1.0, 0.0)
    if low > high:
        raise SpecError(
            _("invalid --price {text!r}").format(text=text),
            next_step=_("use dollars per hour: 1.60, or a range: 1.60-2.40"),
        )
    return TotalHourlyPrice(low, high, "--price")


def get_vast_max_price(target: Target) -> TotalHourlyPrice | None:
    most = target.vast.max_price if target.hardware.platform == "vast" else 0.0
    return TotalHourlyPrice(most, most, _("the target's ceiling, disk included")) if most else None


def estimate_stage_hours(
    job: Job, values: ParamValues, bytes_per_gpu: float, passed_stages_newest_first: Sequence[StageMeasurement]
) -> tuple[StageHours, ...]:
    """Of `passed_stages_newest_first` one counts with the same parameters."""
    fits = job.fits or JobRequirements()
    params = replace_hub_placeholders_with_repos(job, values.params)
    formulas = FitsFormulaEvaluator(job, params, bytes_per_gpu)

    def has_same_params(run: StageMeasurement) -> bool:
        measured = replace_hub_placeholders_with_repos(job, run.params)
        return all(
            measured.get(name) == value
            for name, value in params.items()
            if name in fits.size.values() or not isinstance(value, str)
        )

    def estimate(stage: str) -> StageHours:
        table = fits.stages.get(stage, StageRequirements())
        for run in passed_stages_newest_first:
            if run.stage == stage and has_same_params(run):
                hours = run.seconds / 3600
                basis = _("measured, run {run}").format(run=run.run)
                return StageHours(stage=stage, low=hours, high=hours, basis=basis, measured=True)
        if table.hours:
            low, high = (
                formulas.evaluate_number_zero_if_text(f"stages.{stage}.hours", formula) for formula in table.hours
            )
            return StageHours(stage=stage, low=low, high=high, basis=_("an assumption of the job, not measured"))
        return StageHours(stage=stage, low=None, high=None, basis=_("not known: no run of it on this data disk passed"))

    return tuple(estimate(stage.name) for stage in select_stages(job, values.profile))


def sum_known_hours(hours: Sequence[StageHours]) -> HoursRange:
    return HoursRange(sum(row.low or 0.0 for row in hours), sum(row.high or 0.0 for row in hours))


def budget_to_json(hours: Sequence[StageHours], price: TotalHourlyPrice | None) -> dict[str, Any]:
    low, high = sum_known_hours(hours)
    rows = [asdict(row) for row in hours]
    cost = price and {"low": low * price.low_usd, "high": high * price.high_usd}
    hourly = price and {"low": price.low_usd, "high": price.high_usd}
    complete = all(row.low is not None for row in hours)
    return {"hours": rows, "total": {"low": low, "high": high}, "complete": complete, "price": hourly, "cost": cost}


def format_budget_lines(hours: Sequence[StageHours], price: TotalHourlyPrice | None) -> list[str]:
    rows = [(_("stage"), _("hours"), _("source"))]
    rows += [(row.stage, _range(row.low, row.high), row.basis) for row in hours]
    low, high = sum_known_hours(hours)
    if not high:
        return [*align_translated(rows), translate(_("total hours: not known; run the job once"))]
    unknown = [row.stage for row in hours if row.low is None]
    total = (
        _("total hours: {hours}, without {stages}").format(hours=_range(low, high), stages=", ".join(unknown))
        if unknown
        else _("total hours: {hours}").format(hours=_range(low, high))
    )
    cost = _("cost: no price is known; pass dollars per hour: --price 1.60-2.40")
    if price:
        cost = _("cost: ${cost} at ${hourly} an hour ({basis})").format(
            cost=_range(low * price.low_usd, high * price.high_usd),
            hourly=_range(price.low_usd, price.high_usd),
            basis=price.basis,
        )
    return [*align_translated(rows), translate(total), translate(cost)]


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "-"
    texts = (f"{low:.2f}", f"{high:.2f}")
    return texts[0] if texts[0] == texts[1] else "-".join(texts)


def print_needs_and_cost_and_require_fit(
    app: App,
    job_name: str,
    requested: RunCommand,
    target: str,
    machine: str,
    gpus: str,
    passed_stages_newest_first: Sequence[StageMeasurement],
    hourly_price: str,
) -> int:
    job = load_job(app.project, job_name)
    values = resolve_params(job, requested.profiles, requested.settings)
    spec = load_target(app.project, target or job.target).target
    capacity = load_declared_capacity(app, spec.name, gpus)
    if machine:
        capacity = parse_machine_capacity(machine, capacity)
    fit = check_fit(job, values, capacity)
    hours = estimate_stage_hours(job, values, capacity.bytes_per_gpu, passed_stages_newest_first)
    price = parse_price_range(hourly_price) if hourly_price else get_vast_max_price(spec)
    time, time_text = budget_to_json(hours, price), "\n".join(format_budget_lines(hours, price))
    if fit is None:
        silent = _("job {name} does not say what it needs: [fits] in jobs/{name}.toml").format(name=job_name)
        app.output({"needs": None, "time": time}, f"{translate(silent)}\n\n{time_text}")
        app.print_next(f"rlbox run {job_name} --dry-run")
        return 0
    text = "\n".join([*format_needs_lines(fit.needs, capacity), "", *_part_lines(fit.needs)]).rstrip()
    app.output({"needs": needs_to_json(fit.needs, capacity, fit.shortages), "time": time}, f"{text}\n\n{time_text}")
    given = {"--target": target, "--machine": machine, "--gpus": gpus}
    options = tuple(word for option, value in given.items() if value for word in (option, value))
    start = ("plan" if machine else "run", job_name)  # a run asks the machine that it takes place on
    require_fit(app, job, fit, replace(requested, command_words=start, option_words=options))
    return 0
