"""The parameters of a run: profiles, `--set`, defaults, their origin, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlbox.config.schema import did_you_mean_hint
from rlbox.errors import SpecError
from rlbox.i18n import _, join, translate
from rlbox.job.job import Job
from rlbox.job.param import (
    Param,
    Scalar,
    convert_and_check_except_bounds,
    find_bounds_problem,
    format_scalar,
    merge_profiles,
    parse_param_text_leaving_units,
)

DEFAULT = "default"
SET = "--set"
RESUME = "resume"


@dataclass(frozen=True, kw_only=True)
class ParamValues:
    """The parameters that hold for one run, and the profile they came from (empty: none; several: joined by `+`).

    `params` are as the command gets them, numbers in the unit it wants; `origins` say where each came from: `default`,
    `profile NAME`, `resume` or `--set`. `hub` has what `{hub.NAME}` stands for where that is not the repository of an
    entry: the folder of its snapshot, as the run's processes see it.
    """

    profile: str
    params: Mapping[str, Scalar]
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    hub: Mapping[str, str] = field(default_factory=dict)


def resolve_params(job: Job, profiles: str | Iterable[str], settings: Mapping[str, str]) -> ParamValues:
    """Later profiles lie over earlier ones. Raises `SpecError` with all that is wrong."""
    names = tuple(filter(None, [profiles] if isinstance(profiles, str) else profiles))
    _check_profiles(job, names)
    given: dict[str, tuple[Scalar, str]] = {
        name: (param.default, DEFAULT) for name, param in job.params.items() if param.default is not None
    }
    given |= {
        name: (value, _("profile {origin}").format(origin=origin))
        for name, (value, origin) in merge_profiles(job.profiles, names).items()
    }
    problems = _Problems(job)
    given |= problems.parse(settings)
    missing = [name for name, param in job.params.items() if param.required and name not in given]
    problems.lines += [
        _("--set {name}=: parameter {name} has no value: {help}").format(name=name, help=job.params[name].help)
        for name in missing
    ]
    params = {name: problems.settle(name, *given[name]) for name in job.params if name in given}
    problems.check()
    origins = {name: given[name][1] for name in params}
    return ParamValues(profile="+".join(names), params=params, origins=origins)


def apply_overrides(
    job: Job, values: ParamValues, apply_resume_params: bool, settings: Mapping[str, str]
) -> ParamValues:
    """`[resume]`, when asked for, lies under `settings`; errors are those of `resolve_params`."""
    problems = _Problems(job)
    given: dict[str, tuple[Scalar, str]] = {}
    if apply_resume_params:
        given = {name: (value, RESUME) for name, value in job.resume.params.items()}
    given |= problems.parse(settings)
    params = {name: problems.settle(name, *pair) for name, pair in given.items()}
    problems.check()
    return ParamValues(
        profile=values.profile,
        params={**values.params, **params},
        origins={**values.origins, **{name: pair[1] for name, pair in given.items()}},
        hub=values.hub,
    )


def replace_hub_placeholders_with_repos(job: Job, params: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return parameters with the repository of its entry in place of `{hub.NAME}`, as people read them."""
    known = {f"{{hub.{entry.name}}}": entry.repo for entry in job.hub}
    return {name: known.get(str(value), value) for name, value in params.items()}


def parse_set_options_last_wins(assignments: Iterable[str]) -> dict[str, str]:
    found = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise SpecError(_("--set {text}: no '=' in it").format(text=text), next_step=_("write --set NAME=VALUE"))
        found[name] = value
    return found


def _check_profiles(job: Job, names: tuple[str, ...]) -> None:
    unknown = [name for name in names if name not in job.profiles]
    if unknown:
        known = ", ".join(sorted(job.profiles)) or _("none")
        shown = " and ".join(repr(name) for name in unknown)
        raise SpecError(
            _("job {job} has no profile {shown}").format(job=job.name, shown=shown),
            next_step=_("choose one of: {known}").format(known=known),
        )


class _Problems:
    def __init__(self, job: Job) -> None:
        self._job = job
        self.lines: list[str] = []
        self._unknown = False

    def parse(self, settings: Mapping[str, str]) -> dict[str, tuple[Scalar, str]]:
        found: dict[str, tuple[Scalar, str]] = {}
        params = self._job.params
        for name, text in settings.items():
            if name not in params:
                self._unknown = True
                near = did_you_mean_hint(name, list(params))
                self.lines.append(
                    _("--set {name}: not a parameter of job {job}{near}").format(
                        name=name, job=self._job.name, near=near
                    )
                )
                continue
            try:
                found[name] = (parse_param_text_leaving_units(params[name], text), SET)
            except ValueError as error:
                self.lines.append(
                    _("--set {name}={text}: {error}: {help}").format(
                        name=name, text=text, error=error, help=params[name].help
                    )
                )
        return found

    def settle(self, name: str, value: Scalar, origin: str) -> Scalar:
        param = self._job.params[name]
        try:
            settled = convert_and_check_except_bounds(param, value)
            problem = find_bounds_problem(param, settled)
        except ValueError as error:
            shown = f"--set {name}={value}" if origin == SET else f"{origin}: {name}"
            self.lines.append(join(": ", (shown, error, param.help)))
            return value
        if problem:
            self.lines.append(
                _("parameter {name} is {problem}: {help}").format(name=name, problem=problem, help=param.help)
            )
        return settled

    def check(self) -> None:
        if not self.lines:
            return
        known = _("parameters: {params}").format(params=", ".join(sorted(self._job.params)) or _("none"))
        what = self.lines[0]
        if len(self.lines) > 1:
            head = _("job {job}: {count} problems").format(job=self._job.name, count=len(self.lines))
            what = join("\n  ", (head, *self.lines))
        step = (
            known
            if self._unknown
            else _("rlbox show {job} prints the allowed values of each parameter").format(job=self._job.name)
        )
        raise SpecError(what, next_step=step)


def build_undated_overrides_entry(
    values: ParamValues,
    settings: Mapping[str, str],
    *,
    previous_params: Mapping[str, Scalar],
    first_stage: str = "",
    force: bool = False,
    notes: Sequence[str] = (),
    resume: bool = False,
) -> dict[str, Any]:
    """Return the entry of `overrides.json` for one start of a run; `previous_params` are the defaults for a new one."""
    changed = {
        name: {"before": previous_params.get(name), "now": value, "origin": values.origins.get(name, "")}
        for name, value in values.params.items()
        if previous_params.get(name) != value
    }
    return {
        "resume": resume,
        "profile": values.profile,
        "set": dict(settings),
        "from": first_stage,
        "force": force,
        "changed": changed,
        "notes": list(notes),
    }


def resolve_default_params(job: Job) -> dict[str, Scalar]:
    return {
        name: convert_and_check_except_bounds(param, param.default)
        for name, param in job.params.items()
        if param.default is not None
    }


def get_unit_by_param_except_fractions(job: Job) -> dict[str, str]:
    units = {name: param.argument_unit for name, param in job.params.items()}
    return {name: unit for name, unit in units.items() if unit not in ("", "fraction")}


def format_param_lines(params: Mapping[str, Scalar], origins: Mapping[str, str], units: Mapping[str, str]) -> list[str]:
    lines = []
    for name, value in sorted(params.items()):
        unit = f" {units[name]}" if name in units else ""
        origin = origins.get(name, DEFAULT)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        lines.append(f"{name} = {text}{unit}" + ("" if origin == DEFAULT else f"  ({origin})"))
    return lines


def _describe_param(param: Param) -> str:
    unit = (
        _(" in {shown_unit}").format(shown_unit=param.argument_unit)
        if param.argument_unit not in ("", "fraction")
        else ""
    )
    parts = [param.effective_type + unit]
    if param.choices:
        parts = [_("one of {choices}").format(choices=", ".join(map(str, param.choices)))]
    if param.at_least is not None or param.at_most is not None:
        low = "" if param.at_least is None else _("at least {at_least}").format(at_least=param.at_least)
        high = "" if param.at_most is None else _("at most {at_most}").format(at_most=param.at_most)
        parts.append(_("{low} and {high}").format(low=low, high=high) if low and high else low or high)
    return join(", ", [*parts, *([_("required")] if param.required else [])])


def format_declared_param_lines(job: Job) -> list[str]:
    if not job.params:
        return []
    width = max(map(len, job.params))
    lines = [translate(_("# parameters: --set NAME=VALUE"))]
    for name, param in job.params.items():
        value = "" if param.default is None else format_scalar(param.default)
        told = f"{name:<{width}} = {value:<10}"
        lines.append(f"{told} # {translate(param.help)} ({translate(_describe_param(param))})")
    return [*lines, ""]
