"""The parameters of one run: defaults, then the profile, then `--set`."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from rlbox.errors import SpecError
from rlbox.spec.job import Job, Param


@dataclass(frozen=True, kw_only=True)
class Values:
    """The parameters that hold for one run, and the profile they came from (empty: none)."""

    profile: str
    params: Mapping[str, int | float | str]


def plan_values(job: Job, profile: str, settings: Mapping[str, str]) -> Values:
    """Return the job's parameters after `profile` and the `settings` of the command line.

    Raises
    ------
    SpecError
        An unknown profile or parameter, or a value of the wrong type or out of its range.
    """
    if profile and profile not in job.profiles:
        known = ", ".join(sorted(job.profiles)) or "none"
        raise SpecError(f"job {job.name} has no profile {profile!r}", next_step=f"choose one of: {known}")
    params = {name: param.default for name, param in job.params.items()}
    params |= job.profiles.get(profile, {})
    for name, text in settings.items():
        if name not in job.params:
            near = difflib.get_close_matches(name, job.params, n=1)
            raise SpecError(
                f"--set {name}: not a parameter of job {job.name}" + (f" (did you mean {near[0]!r}?)" if near else ""),
                next_step=f"parameters: {', '.join(sorted(job.params))}",
            )
        params[name] = _parse(name, text, job.params[name])
    for name, value in params.items():
        _check_range(name, value, job.params[name])
    return Values(profile=profile, params=params)


def _parse(name: str, text: str, param: Param) -> int | float | str:
    kind = type(param.default)
    try:
        value = kind(text)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(text)
    except ValueError as error:
        wanted = "a whole number" if kind is int else "a number"
        raise SpecError(f"--set {name}={text}: must be {wanted}: {param.help}") from error
    return value


def _check_range(name: str, value: int | float | str, param: Param) -> None:
    low, high = param.at_least, param.at_most
    if isinstance(value, str):
        return
    if (low is not None and value < low) or (high is not None and value > high):
        bounds = f"{'-inf' if low is None else f'{low:g}'} to {'inf' if high is None else f'{high:g}'}"
        raise SpecError(f"parameter {name} is {value}, out of its range {bounds}: {param.help}")
