"""The job: ordered stages with gates, and the services they need. The schema of `jobs/<job>.toml`.

Command words, addresses, paths and patterns may hold placeholders: `{param.NAME}`, `{port.NAME}`, `{run}` (run
directory), `{job}` (the job's own programs), `{data}` (data disk) and `{python}` (the stack's interpreter).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, field_validator, model_validator

from rlbox.spec.target import EnvName, Frozen, Name

Word = Annotated[str, StringConstraints(min_length=1)]
ParamName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
Port = Annotated[int, Field(ge=1024, le=65535)]
_KINDS = {int: "a whole number", float: "a number", str: "text"}
_FITS: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float), str: (str,)}
Seconds = Annotated[float, Field(gt=0)]


def _number_or_text(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"must be a number or text (got {value!r})")
    return value


Value = Annotated[int | float | str, BeforeValidator(_number_or_text)]


class Param(Frozen):
    """A value that the user may change with `--set NAME=VALUE`."""

    default: Value
    help: str
    at_least: float | None = None
    at_most: float | None = None


class Ready(Frozen):
    """The request that proves a service does its work; it is repeated until it is answered as told."""

    url: Word
    method: Literal["GET", "POST"] = "GET"
    body: str = Field("", description="JSON text sent with POST")
    contains: str = Field("", description="text that the answer must hold")


class Service(Frozen):
    """A process that runs beside the stages that name it: started before, stopped after, in reverse order."""

    name: Name
    title: str
    command: tuple[Word, ...] = Field(min_length=1)
    ports: tuple[Word, ...] = Field((), description="names of the ports it listens on")
    ready: Ready
    start_s: Seconds = Field(120.0, description="limit for becoming ready, seconds")
    env: dict[EnvName, str] = Field(default_factory=dict)


class LineRule(Frozen):
    """A line that a log must hold (`require`) or must not hold (`forbid`)."""

    pattern: Word
    log: Word = Field("stage", description="'stage', or the name of a service")
    count: Annotated[int, Field(ge=1)] = Field(1, description="how many lines must match at least")
    why: str = ""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return value


class FileRule(Frozen):
    """A path that must exist and be complete."""

    path: Word
    min_bytes: Annotated[int, Field(ge=0)] = 1
    manifest: bool = Field(False, description="the path is a JSON manifest: every file it lists is compared by sha256")
    why: str = ""


class RayJob(Frozen):
    """The stage's command is the entrypoint of a job submitted through the Ray Jobs API."""

    dashboard: Word = Field(description="address of the dashboard, http://127.0.0.1:{port.NAME}")
    service: Word = Field(description="name of the service that is the Ray head")
    temp_dir: Word = Field(description="the head's --temp-dir, where the driver's log is")


class Gate(Frozen):
    """What a stage must have shown before the next one may start; exit status 0 is always required."""

    require: tuple[LineRule, ...] = ()
    forbid: tuple[LineRule, ...] = ()
    files: tuple[FileRule, ...] = ()


class Limits(Frozen):
    """How long a stage may take and be silent, seconds."""

    total_s: Seconds = 3600.0
    silence_s: Seconds = 600.0


class Stage(Frozen):
    """One step of staged running."""

    name: Name
    title: str
    command: tuple[Word, ...] = Field(min_length=1)
    services: tuple[Word, ...] = ()
    needs: tuple[FileRule, ...] = Field((), description="what must be there, whole, before anything starts")
    ray: RayJob | None = None
    env: dict[EnvName, str] = Field(default_factory=dict)
    gate: Gate = Gate()
    limits: Limits = Limits()


class Job(Frozen):
    """What can be run: parameters, profiles, ports, services and stages."""

    name: Name
    title: str
    target: Name = Field(description="target it runs on unless --target says otherwise")
    params: dict[ParamName, Param] = Field(default_factory=dict)
    profiles: dict[Name, dict[ParamName, Value]] = Field(default_factory=dict)
    ports: dict[ParamName, Port] = Field(default_factory=dict)
    env: dict[EnvName, str] = Field(default_factory=dict)
    services: tuple[Service, ...] = ()
    stages: tuple[Stage, ...] = Field(min_length=1)
    plot: tuple[Word, ...] = Field((), description="command run after the last stage, passed or not, to draw curves")
    curves: str = Field("", description="the picture that `plot` writes")

    @model_validator(mode="after")
    def _references_hold(self) -> Job:
        problems = [*_profile_problems(self), *_name_problems(self)]
        if problems:
            raise ValueError("\n".join(problems))
        return self


def _profile_problems(job: Job) -> list[str]:
    problems = []
    for profile, values in job.profiles.items():
        for name, value in values.items():
            param = job.params.get(name)
            if param is None:
                problems.append(f"profiles.{profile}.{name}: not a parameter of the job")
            elif not isinstance(value, _FITS[type(param.default)]):
                kind = _KINDS[type(param.default)]
                problems.append(f"profiles.{profile}.{name}: must be {kind} like its default (got {value!r})")
    return problems


def _name_problems(job: Job) -> list[str]:
    problems = [f"{what}: two have the name {name!r}" for what, name in _twice(job)]
    services = {service.name for service in job.services}
    for service in job.services:
        problems += [f"services.{service.name}: unknown port {p!r}" for p in service.ports if p not in job.ports]
    for stage in job.stages:
        problems += [f"stages.{stage.name}: unknown service {s!r}" for s in stage.services if s not in services]
        if stage.ray and stage.ray.service not in stage.services:
            problems.append(f"stages.{stage.name}.ray.service: {stage.ray.service!r} is not a service of the stage")
        for rule in (*stage.gate.require, *stage.gate.forbid):
            if rule.log != "stage" and rule.log not in stage.services:
                problems.append(f"stages.{stage.name}.gate: log {rule.log!r} is not a service of the stage")
    return problems


def _twice(job: Job) -> list[tuple[str, str]]:
    found = []
    for what, names in (("services", [s.name for s in job.services]), ("stages", [s.name for s in job.stages])):
        found += [(what, name) for name in sorted(set(names)) if names.count(name) > 1]
    return found
