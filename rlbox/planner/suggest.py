"""The nearest setting that fits: parameters that a job lets be turned, its profiles, and both together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rlbox.errors import SpecError
from rlbox.job.job import Job
from rlbox.job.param import Param, Scalar, format_scalar
from rlbox.job.params import ParamValues, apply_overrides, resolve_params
from rlbox.planner.capacity import Capacity
from rlbox.planner.needs import evaluate_fits, find_shortages

_FINE, _COARSE = 200, 8
"""How many values of one parameter are tried alone, and together with another's."""
_SMALL, _PAIR = 64, 40


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
        """Return the parameters that it gives; `SpecError` when one is wrong."""
        if self.resumed_params:
            return apply_overrides(job, self.resumed_params, False, self.settings)
        return resolve_params(job, self.profiles, self.settings)


def suggest_fitting_command(job: Job, requested: RunCommand, room: Capacity) -> RunCommand | None:
    """Return the setting nearest to `requested` that fits `room`; None when none of what may be turned does.

    One parameter alone comes first, then another profile in the place of those asked for, or over them, then two that
    the command line set itself, or some of these left out, then any two, then a profile with one, then a profile with
    some left out. The model stays.
    """
    models = _models(job, requested)
    bases: dict[tuple[str, ...], ParamValues] = {}  # of each choice of profiles, which thousands of settings lie over

    def fits(found: RunCommand) -> bool:
        try:
            base = (
                found.resumed_params or bases.get(found.profiles) or bases.setdefault(found.profiles, _bare(job, found))
            )
            return _fits(job, apply_overrides(job, base, False, found.settings), room, models)
        except SpecError:  # out of a parameter's range, or a formula without a value
            return False

    return next(filter(fits, _near(job, requested)), None)


def _bare(job: Job, wish: RunCommand) -> ParamValues:
    """Return the parameters that its profiles give alone, but for those that a setting must give."""
    required = {name: text for name, text in wish.settings.items() if job.params[name].required}
    return resolve_params(job, wish.profiles, required)


def _models(job: Job, wish: RunCommand) -> dict[str, Scalar]:
    """Return the parameters that say which models of which size are meant."""
    sizes = job.fits.size if job.fits else {}
    params = wish.resolve_params(job).params
    return {name: params[name] for name in (*sizes, *sizes.values())}


def _near(job: Job, wish: RunCommand) -> Iterator[RunCommand]:
    yield from _one(job, wish, _FINE)
    profiles = [replace(wish, profiles=kept) for kept in _profiles(job, wish)]
    yield from profiles
    names = _turned(job, wish)
    yield from _two(job, wish, [name for name in names if name in wish.settings], _FINE)
    yield from _fewer(wish)
    yield from _two(job, wish, names, _COARSE)
    for profile in profiles:
        yield from _one(job, profile, _COARSE)
    for profile in profiles:
        yield from _fewer(profile)


def _fewer(wish: RunCommand) -> Iterator[RunCommand]:
    """Yield it without one of its settings, without two, at last without any."""
    for number in range(len(wish.settings) - 1, -1, -1):
        yield from (
            replace(wish, settings=dict(left)) for left in itertools.combinations(wish.settings.items(), number)
        )


def _one(job: Job, wish: RunCommand, most: int) -> Iterator[RunCommand]:
    for name in _turned(job, wish):
        yield from (_with(wish, {name: value}) for value in _values(job, wish, name, most))


def _two(job: Job, wish: RunCommand, names: Iterable[str], most: int) -> Iterator[RunCommand]:
    """Yield two parameters changed at once, by how far both are away together."""
    for first, second in itertools.combinations(names, 2):
        values = [list(enumerate(_values(job, wish, name, most)))[:_PAIR] for name in (first, second)]
        for one, other in sorted(itertools.product(*values), key=lambda pair: pair[0][0] + pair[1][0]):
            yield _with(wish, {first: one[1], second: other[1]})


def _profiles(job: Job, wish: RunCommand) -> Iterator[tuple[str, ...]]:
    if wish.resumed_params:
        return
    yield from [()] if wish.profiles else []
    for name in job.profiles:
        if name not in wish.profiles:
            yield (name,)
    for name in job.profiles:
        if wish.profiles and name not in wish.profiles:
            yield (*wish.profiles, name)


def _turned(job: Job, wish: RunCommand) -> tuple[str, ...]:
    """Return the parameters that may be turned; those that the command line set come last."""
    names = job.fits.turn if job.fits else ()
    return tuple(sorted(names, key=lambda name: name in wish.settings))


def _with(wish: RunCommand, changed: Mapping[str, Scalar]) -> RunCommand:
    texts = {name: format_scalar(value) for name, value in changed.items()}
    return replace(wish, settings={**wish.settings, **texts})


def _values(job: Job, wish: RunCommand, name: str, most: int) -> Iterable[Scalar]:
    """Return other values of a parameter, the nearest first."""
    try:
        now = wish.resolve_params(job).params[name]
    except SpecError:
        return ()
    param = job.params[name]
    if isinstance(now, bool):
        return (not now,)
    if param.choices:
        return tuple(choice for choice in param.choices if choice != now)
    if isinstance(now, str):
        return ()
    return itertools.islice(_numbers(param, now, coarse=most <= _COARSE), most)


def _numbers(param: Param, now: int | float, *, coarse: bool) -> Iterator[int | float]:
    """Yield numbers at growing distance; of large whole ones halves and doubles come first, of shares twentieths."""
    if param.kind == "fraction":
        shares = (round(now + sign * step / 20, 2) for step in range(1, 20) for sign in (-1, 1))
        yield from (share for share in shares if 0 < share < 1)
    elif isinstance(now, int):
        halves = [now // 2**power for power in range(1, 12)]
        doubles = [now * 2**power for power in range(1, 6)]
        jumps = [value for pair in itertools.zip_longest(halves, doubles) for value in pair if value]
        steps = [] if coarse else [now + sign * step for step in range(1, _FINE) for sign in (-1, 1)]
        order = [*steps, *jumps] if now <= _SMALL else [*jumps, *steps]
        yield from dict.fromkeys(value for value in order if value > 0 and value != now)


def _fits(job: Job, values: ParamValues, room: Capacity, models: Mapping[str, Scalar]) -> bool:
    needs = evaluate_fits(job, values, room.bytes_per_gpu)
    same = all(values.params[name] == value for name, value in models.items())
    return same and needs is not None and not find_shortages(needs, room)
