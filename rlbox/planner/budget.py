"""How many hours a job's stages take, and what they cost: from measured runs, else from what the job assumes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from rlbox.amounts import columns
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.job.fits import Fits, StageFits
from rlbox.job.job import Job
from rlbox.job.param import Scalar
from rlbox.job.params import ParamValues
from rlbox.job.plan import select_stages
from rlbox.planner.needs import Formulas
from rlbox.target.target import Target

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


class HourlyPrice(NamedTuple):
    """Dollars an hour between `low` and `high`; `basis` says whose they are."""

    low: float
    high: float
    basis: str


class HoursRange(NamedTuple):
    low: float
    high: float


def parse_price_range(text: str) -> HourlyPrice:
    found = _PRICE.fullmatch(text)
    low, high = (float(found[1]), float(found[2] or found[1])) if found else (1.0, 0.0)
    if low > high:
        raise SpecError(
            _("invalid --price {text!r}").format(text=text),
            next_step=_("say dollars an hour, a price or a range (1.60-2.40)"),
        )
    return HourlyPrice(low, high, "--price")


def get_target_max_price(target: Target) -> HourlyPrice | None:
    most = target.vast.max_price if target.hardware.platform == "vast" else 0.0
    return HourlyPrice(most, most, "the target's ceiling, disk included") if most else None


def estimate_stage_hours(
    job: Job,
    values: ParamValues,
    bytes_per_gpu: float,
    measurements: Sequence[StageMeasurement],
) -> tuple[StageHours, ...]:
    """`measurements` are stages that passed, the latest first; one counts with the same parameters."""
    fits = job.fits or Fits()
    formulas = Formulas(job, values.params, bytes_per_gpu)

    def has_same_params(run: StageMeasurement) -> bool:
        return all(
            run.params.get(name) == value
            for name, value in values.params.items()
            if name in fits.size.values() or not isinstance(value, str)
        )

    def estimate(stage: str) -> StageHours:
        table = fits.stages.get(stage, StageFits())
        for run in measurements:
            if run.stage == stage and has_same_params(run):
                hours = run.seconds / 3600
                return StageHours(stage=stage, low=hours, high=hours, basis=f"measured, run {run.run}", measured=True)
        if table.hours:
            low, high = (formulas.evaluate_number(f"stages.{stage}.hours", formula) for formula in table.hours)
            return StageHours(stage=stage, low=low, high=high, basis="an assumption of the job, not measured")
        return StageHours(stage=stage, low=None, high=None, basis="not known: no run of it on this data disk passed")

    return tuple(estimate(stage.name) for stage in select_stages(job, values.profile))


def sum_hours(hours: Sequence[StageHours]) -> HoursRange:
    return HoursRange(sum(row.low or 0.0 for row in hours), sum(row.high or 0.0 for row in hours))


def budget_json(hours: Sequence[StageHours], price: HourlyPrice | None) -> dict[str, Any]:
    low, high = sum_hours(hours)
    rows = [asdict(row) for row in hours]
    cost = price and {"low": low * price.low, "high": high * price.high}
    hourly = price and {"low": price.low, "high": price.high}
    complete = all(row.low is not None for row in hours)
    return {"hours": rows, "total": {"low": low, "high": high}, "complete": complete, "price": hourly, "cost": cost}


def budget_lines(hours: Sequence[StageHours], price: HourlyPrice | None) -> list[str]:
    rows = [("stage", "hours", "source")]
    rows += [(row.stage, _range(row.low, row.high), row.basis) for row in hours]
    low, high = sum_hours(hours)
    if not high:
        return [*columns(rows), "total hours: not known; run the job once"]
    unknown = [row.stage for row in hours if row.low is None]
    total = f"total hours: {_range(low, high)}" + (f", without {', '.join(unknown)}" if unknown else "")
    if price is None:
        return [*columns(rows), total, "cost: no price is known; say dollars an hour: --price 1.60-2.40"]
    hourly = _range(price.low, price.high)
    cost = f"cost: ${_range(low * price.low, high * price.high)} at ${hourly} an hour ({price.basis})"
    return [*columns(rows), total, cost]


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "-"
    texts = (f"{low:.2f}", f"{high:.2f}")
    return texts[0] if texts[0] == texts[1] else "-".join(texts)
