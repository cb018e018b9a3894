"""The nearest setting that fits: parameters that a job lets be turned, its profiles, or settings left out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlbox.errors import SpecError
from rlbox.job.job import Job
from rlbox.job.param import Param, Scalar, format_scalar
from rlbox.job.params import ParamValues, apply_overrides, resolve_params
from rlbox.planner.needs import Capacity, evaluate_fits, find_shortages

_MAX_VALUES, _MAX_VALUES_OF_SET_PAIR, _MAX_VALUES_OF_PAIR = 200, 40, 8
"""How many values of a parameter are tried alone, with another's that the command line set, and with any other's."""
_SMALL = 64


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

    def to_words_after_rlbox(self) -> tuple[str, ...]:
        named = [word for name in self.profiles for word in ("--profile", name)]
        settings = [word for pair in self.settings.items() for word in ("--set", "=".join(pair))]
        return (*self.command_words, *named, *settings, *self.option_words)

    def resolve_params(self, job: Job) -> ParamValues:
        if self.resumed_params:
            return apply_overrides(job, self.resumed_params, False, self.settings)
        return resolve_params(job, self.profiles, self.settings)


def suggest_fitting_command(job: Job, requested: RunCommand, room: Capacity) -> RunCommand | None:
    """Return the setting nearest to `requested` that fits `room`; None when none of what may be turned does.

    One parameter alone comes first, then another profile in the place of those asked for, or over them, then two
    parameters that the command line set itself, then some of these left out, then any two, at last another profile with
    some left out. The model stays.
    """
    sizes = job.fits.size if job.fits else {}
    before = requested.resolve_params(job).params
    models = {name: before[name] for name in (*sizes, *sizes.values())}

    required = {name: text for name, text in requested.settings.items() if job.params[name].required}

    @functools.cache  # thousands of settings lie over the same profiles
    def resolve_profiles(profiles: tuple[str, ...]) -> ParamValues:
        return resolve_params(job, profiles, required)

    def fits(command: RunCommand) -> bool:
        if not required.keys() <= command.settings.keys():
            return False
        try:
            base = command.resumed_params or resolve_profiles(command.profiles)
            values = apply_overrides(job, base, False, command.settings)
            needs = evaluate_fits(job, values, room.bytes_per_gpu)
        except SpecError:  # out of a parameter's range, or a formula without a value
            return False
        is_same_model = all(values.params[name] == value for name, value in models.items())
        return is_same_model and needs is not None and not find_shortages(needs, room)

    return next(filter(fits, _list_candidates(job, requested, before)), None)


def _list_candidates(job: Job, requested: RunCommand, before: Mapping[str, Scalar]) -> Iterator[RunCommand]:
    # those that the command line set come last
    names = sorted(job.fits.turn if job.fits else (), key=lambda name: name in requested.settings)
    values = {name: list(_list_other_values(job.params[name], before[name])) for name in names}
    for name in names:
        yield from (_with_settings(requested, {name: value}) for value in values[name])
    others = [replace(requested, profiles=profiles) for profiles in _list_other_profiles(job, requested)]
    yield from others
    set_names = [name for name in names if name in requested.settings]
    yield from _list_pairs(requested, {name: values[name][:_MAX_VALUES_OF_SET_PAIR] for name in set_names})
    yield from _list_with_fewer_settings([requested])
    yield from _list_pairs(requested, {name: values[name][:_MAX_VALUES_OF_PAIR] for name in names})
    yield from _list_with_fewer_settings(others)


def _list_pairs(requested: RunCommand, values: Mapping[str, Sequence[Scalar]]) -> Iterator[RunCommand]:
    """Yield two parameters changed at once, by how far both are away together."""
    for first, second in itertools.combinations(values, 2):
        rows = itertools.product(enumerate(values[first]), enumerate(values[second]))
        for one, other in sorted(rows, key=lambda pair: pair[0][0] + pair[1][0]):
            yield _with_settings(requested, {first: one[1], second: other[1]})


def _list_with_fewer_settings(commands: Iterable[RunCommand]) -> Iterator[RunCommand]:
    for command in commands:
        for number in range(len(command.settings) - 1, -1, -1):
            for left in itertools.combinations(command.settings.items(), number):
                yield replace(command, settings=dict(left))


def _list_other_profiles(job: Job, requested: RunCommand) -> Iterator[tuple[str, ...]]:
    if requested.resumed_params:
        return
    others = [name for name in job.profiles if name not in requested.profiles]
    yield from [()] if requested.profiles else []
    yield from ((name,) for name in others)
    yield from ((*requested.profiles, name) for name in others if requested.profiles)


def _with_settings(command: RunCommand, values: Mapping[str, Scalar]) -> RunCommand:
    texts = {name: format_scalar(value) for name, value in values.items()}
    return replace(command, settings={**command.settings, **texts})


def _list_other_values(param: Param, now: Scalar) -> Iterable[Scalar]:
    if isinstance(now, bool):
        return (not now,)
    if param.choices:
        return tuple(choice for choice in param.choices if choice != now)
    if isinstance(now, str):
        return ()
    return itertools.islice(_list_other_numbers(param, now), _MAX_VALUES)


def _list_other_numbers(param: Param, now: int | float) -> Iterator[int | float]:
    """Yield numbers at growing distance; of large whole ones halves and doubles come first, of shares twentieths."""
    if param.kind == "fraction":
        shares = (round(now + sign * step / 20, 2) for step in range(1, 20) for sign in (-1, 1))
        yield from (share for share in shares if 0 < share < 1)
    elif isinstance(now, int):
        halves = [now // 2**power for power in range(1, 12)]
        doubles = [now * 2**power for power in range(1, 6)]
        jumps = [value for pair in itertools.zip_longest(halves, doubles) for value in pair if value]
        steps = [now + sign * step for step in range(1, _MAX_VALUES) for sign in (-1, 1)]
        order = [*steps, *jumps] if now <= _SMALL else [*jumps, *steps]
        yield from dict.fromkeys(value for value in order if value > 0 and value != now)
