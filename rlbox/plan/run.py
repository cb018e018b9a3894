"""What a run will do, as one value that is written into the run directory and carried out by the supervisor."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rlbox.errors import SpecError
from rlbox.plan.params import Values
from rlbox.spec.job import FileRule, Job, LineRule, Service, Stage

_PLACEHOLDER = re.compile(r"\{([a-z]+)(?:\.([a-z0-9_-]+))?\}")


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Where things are, as the stage's processes see them: in the container, or on the host for `here`."""

    run: str
    job: str
    data: str
    python: str


@dataclass(frozen=True, kw_only=True)
class ReadyPlan:
    """The request that proves a service works."""

    url: str
    method: str
    body: str
    contains: str


@dataclass(frozen=True, kw_only=True)
class ServicePlan:
    """One service; `log` is relative to the stage's directory, `ports` maps port names to numbers."""

    name: str
    title: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    ports: Mapping[str, int]
    ready: ReadyPlan
    start_s: float
    log: str


@dataclass(frozen=True, kw_only=True)
class LinePlan:
    """A line rule with its placeholders filled in."""

    pattern: str
    log: str
    count: int
    why: str


@dataclass(frozen=True, kw_only=True)
class FilePlan:
    """A file rule with its placeholders filled in."""

    path: str
    min_bytes: int
    manifest: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class RayPlan:
    """The Ray Jobs API that the stage's command is submitted to."""

    dashboard: str
    service: str
    temp_dir: str
    submission_id: str


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """One stage; `directory` is relative to the run directory and holds its logs."""

    name: str
    title: str
    directory: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    services: tuple[ServicePlan, ...]
    needs: tuple[FilePlan, ...]
    ray: RayPlan | None
    require: tuple[LinePlan, ...]
    forbid: tuple[LinePlan, ...]
    files: tuple[FilePlan, ...]
    total_s: float
    silence_s: float


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A whole run: what is written to `plan.json` before anything starts."""

    run_id: str
    job: str
    target: str
    place: str
    profile: str
    params: Mapping[str, int | float | str]
    paths: Paths
    env: Mapping[str, str]
    stages: tuple[StagePlan, ...]
    plot: tuple[str, ...]
    curves: str
    schema: int = 1

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON types; `load_run_plan` is the way back."""
        return dataclasses.asdict(self)


def plan_run(job: Job, values: Values, paths: Paths, *, run_id: str, place: str, target: str) -> RunPlan:
    """Return everything that the run of `job` will do, placeholders filled in.

    Parameters
    ----------
    values
        Parameters after profile and `--set`, from `plan_values`.
    place
        `docker` (in a container) or `here` (on this machine).

    Raises
    ------
    SpecError
        A placeholder names nothing; the message says where it stands.
    """
    fill = Filler(job, values, paths)
    return RunPlan(
        run_id=run_id,
        job=job.name,
        target=target,
        place=place,
        profile=values.profile,
        params=dict(values.params),
        paths=paths,
        env=fill.table("env", job.env),
        stages=tuple(_plan_stage(job, stage, number, fill, run_id) for number, stage in enumerate(job.stages, start=1)),
        plot=fill.words("plot", job.plot),
        curves=fill.text("curves", job.curves),
    )


class Filler:
    """Replaces the placeholders of one job by their values."""

    def __init__(self, job: Job, values: Values, paths: Paths) -> None:
        self._job = job.name
        self._known = {name: str(value) for name, value in dataclasses.asdict(paths).items()}
        self._known |= {f"param.{name}": str(value) for name, value in values.params.items()}
        self._known |= {f"port.{name}": str(value) for name, value in job.ports.items()}

    def pattern(self, where: str, text: str) -> str:
        """Return the regular expression `text` filled in; a value stands for itself, whatever characters it has."""
        return self.text(where, text, quote=re.escape)

    def text(self, where: str, text: str, quote: Callable[[str], str] = str) -> str:
        """Return `text` with every placeholder replaced; one that names nothing is a `SpecError`."""

        def value(match: re.Match[str]) -> str:
            name = match.group(0)[1:-1]
            if name not in self._known:
                raise SpecError(
                    f"jobs/{self._job}.toml: {where}: {{{name}}} names nothing",
                    next_step="known: " + " ".join(f"{{{known}}}" for known in sorted(self._known)),
                )
            return quote(self._known[name])

        return _PLACEHOLDER.sub(value, text)

    def words(self, where: str, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return each of `words` filled in."""
        return tuple(self.text(where, word) for word in words)

    def table(self, where: str, table: Mapping[str, str]) -> dict[str, str]:
        """Return `table` with each value filled in."""
        return {key: self.text(f"{where}.{key}", value) for key, value in table.items()}


def _plan_stage(job: Job, stage: Stage, number: int, fill: Filler, run_id: str) -> StagePlan:
    where = f"stages.{stage.name}"
    services = {service.name: service for service in job.services}
    ray = None
    if stage.ray:
        ray = RayPlan(
            dashboard=fill.text(f"{where}.ray.dashboard", stage.ray.dashboard),
            service=stage.ray.service,
            temp_dir=fill.text(f"{where}.ray.temp_dir", stage.ray.temp_dir),
            submission_id=f"{run_id}-{stage.name}",
        )
    return StagePlan(
        name=stage.name,
        title=stage.title,
        directory=f"stages/{number}-{stage.name}",
        argv=fill.words(f"{where}.command", stage.command),
        env=fill.table(f"{where}.env", stage.env),
        services=tuple(_plan_service(job, services[name], fill) for name in stage.services),
        needs=_plan_files(f"{where}.needs", stage.needs, fill),
        ray=ray,
        require=_plan_lines(f"{where}.gate.require", stage.gate.require, fill),
        forbid=_plan_lines(f"{where}.gate.forbid", stage.gate.forbid, fill),
        files=_plan_files(f"{where}.gate.files", stage.gate.files, fill),
        total_s=stage.limits.total_s,
        silence_s=stage.limits.silence_s,
    )


def _plan_service(job: Job, service: Service, fill: Filler) -> ServicePlan:
    where = f"services.{service.name}"
    return ServicePlan(
        name=service.name,
        title=service.title,
        argv=fill.words(f"{where}.command", service.command),
        env=fill.table(f"{where}.env", service.env),
        ports={name: job.ports[name] for name in service.ports},
        ready=ReadyPlan(
            url=fill.text(f"{where}.ready.url", service.ready.url),
            method=service.ready.method,
            body=fill.text(f"{where}.ready.body", service.ready.body),
            contains=service.ready.contains,
        ),
        start_s=service.start_s,
        log=f"{service.name}.log",
    )


def _plan_lines(where: str, rules: tuple[LineRule, ...], fill: Filler) -> tuple[LinePlan, ...]:
    return tuple(
        LinePlan(pattern=fill.pattern(where, rule.pattern), log=rule.log, count=rule.count, why=rule.why)
        for rule in rules
    )


def _plan_files(where: str, rules: tuple[FileRule, ...], fill: Filler) -> tuple[FilePlan, ...]:
    return tuple(
        FilePlan(path=fill.text(where, rule.path), min_bytes=rule.min_bytes, manifest=rule.manifest, why=rule.why)
        for rule in rules
    )


def load_run_plan(data: Mapping[str, Any]) -> RunPlan:
    """Return the plan that `RunPlan.as_json` wrote.

    Raises
    ------
    SpecError
        The data were written by another schema, or are no plan.
    """
    schema = data.get("schema") if isinstance(data, Mapping) else None
    if schema != 1:
        raise SpecError(f"plan.json has schema {schema!r}, this rlbox reads 1")
    try:
        return _adapter().validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SpecError(f"plan.json is not a plan of this rlbox: {key}: {first['msg']}") from error


@functools.lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[RunPlan]:
    return TypeAdapter(RunPlan)
