"""What a run will do, as one value that is written into the run directory and carried out by the supervisor."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.job.gate import (
    PLAN_CONTEXT,
    BenignRule,
    FileRule,
    FinalProbe,
    FixBenignRule,
    ForbidRule,
    IgnoredModelText,
    MetricRule,
    Ready,
    RequireRule,
)
from rlbox.job.job import Job, Phase, Service, Stage, UsualStepsBeforeHang
from rlbox.job.param import Scalar, format_argument_without_unit, format_scalar
from rlbox.job.params import (
    SET,
    ParamValues,
    apply_overrides,
    get_unit_by_param_except_fractions,
    replace_hub_placeholders_with_repos,
)
from rlbox.values import OWN

_PYTHONPATH = "PYTHONPATH"
_PLACEHOLDER = re.compile(r"\{([a-z]+)(?:\.([a-z0-9_-]+))?\}")


@dataclass(frozen=True, kw_only=True)
class ProcessPaths:
    """Where things are, as the stage's processes see them: in the container, or on the host for `here`.

    `python` is the stack's interpreter, `rlbox` the one that has rlbox, `source` the user's tree of the job's
    framework, empty for the installed one.
    """

    run: str
    job: str
    data: str
    python: str
    rlbox: str = f"{OWN}/bin/python"
    source: str = ""


class PlaceholderFiller:
    """Replaces the placeholders of one job by their values.

    A parameter's text from the job file may itself name `{run}`, `{job}`, `{data}`, `{python}`, `{rlbox}`, `{attempt}`
    and `{hub.NAME}`; what came by `--set` stands for itself.
    """

    def __init__(self, job: Job, values: ParamValues, paths: ProcessPaths, attempt: int = 1) -> None:
        self._job = job.name
        self.attempt = attempt
        self._known = {name: str(value) for name, value in asdict(paths).items()}
        self._known["attempt"] = str(attempt)
        self._source = self._known.pop("source")
        if job.source:
            self._known["source"] = self._source or job.source.installed
        self._known |= {f"hub.{entry.name}": entry.repo for entry in job.hub}
        self._known |= {f"hub.{name}": folder for name, folder in values.hub.items()}
        own = {name: format_argument_without_unit(job.params[name], value) for name, value in values.params.items()}
        self._optional = {f"{{param.{name}}}" for name, value in values.params.items() if isinstance(value, bool)}
        typed = {name for name, origin in values.origins.items() if origin == SET}
        self._known |= {f"param.{name}": text if name in typed else self._paths(text) for name, text in own.items()}
        self._known |= {f"port.{name}": str(value) for name, value in job.ports.items()}

    def _paths(self, text: str) -> str:
        return _PLACEHOLDER.sub(lambda match: self._known.get(match.group(0)[1:-1], match.group(0)), text)

    def fill_text(self, path_for_errors: str, text: str, quote: Callable[[str], str] = str) -> str:
        def value(match: re.Match[str]) -> str:
            name = match.group(0)[1:-1]
            if name not in self._known:
                raise SpecError(
                    _("jobs/{job}.toml: {where}: {{{name}}} names nothing").format(
                        job=self._job, where=path_for_errors, name=name
                    ),
                    next_step=_("known: {known}").format(
                        known=" ".join(f"{{{known}}}" for known in sorted(self._known))
                    ),
                )
            return quote(self._known[name])

        return _PLACEHOLDER.sub(value, text)

    def fill_argv_dropping_empty_bool_params(self, path_for_errors: str, words: tuple[str, ...]) -> tuple[str, ...]:
        """A word that is nothing but a true-or-false parameter may be empty, and is left out then."""
        filled = ((word, self.fill_text(path_for_errors, word)) for word in words)
        return tuple(text for word, text in filled if text or word not in self._optional)

    def fill_env(
        self, path_for_errors: str, table: Mapping[str, str], *, creates_pythonpath_for_source: bool = False
    ) -> dict[str, str]:
        """Return variables filled in; `[source]` comes first in a PYTHONPATH, which may be made for it."""
        env = {key: self.fill_text(f"{path_for_errors}.{key}", value) for key, value in table.items()}
        folders = [folder for folder in env.get(_PYTHONPATH, "").split(":") if folder]
        if self._source and self._source not in folders and (creates_pythonpath_for_source or _PYTHONPATH in env):
            env[_PYTHONPATH] = ":".join([self._source, *folders])
        return env


def _fill_hub_in_params(job: Job, values: ParamValues) -> ParamValues:
    """Return parameters with folders and repositories in place of `{hub.NAME}`, as people read them in a plan."""
    known = {f"{{hub.{name}}}": folder for name, folder in values.hub.items()}
    params = {name: known.get(str(value), value) for name, value in values.params.items()}
    params = replace_hub_placeholders_with_repos(job, params)
    kept = {name: value for name, value in values.params.items() if values.origins.get(name) == SET}
    return replace(values, params={**params, **kept})


def find_used_hub_names(job: Job, values: ParamValues) -> set[str]:
    """Return the names of `{hub.NAME}` in stages, services and parameters of a run, and of those that it had before."""
    params = [value for name, value in values.params.items() if values.origins.get(name) != SET]
    words = job.model_dump(include={"env", "services", "stages"})
    return {*re.findall(r"\{hub\.([a-z0-9_-]+)\}", f"{words} {params}"), *values.hub}


def container_source_path_or_empty(host_folder: str) -> str:
    """Return where a container sees the tree `host_folder` of its host; empty for none.

    Each tree has a path of its own: Python takes a compiled file for that of any source with its path, time and size.
    """
    return f"/opt/source/{hashlib.sha256(host_folder.encode()).hexdigest()[:8]}" if host_folder else ""


@dataclass(frozen=True, kw_only=True)
class ServicePlan:
    """One service; `log` is relative to the stage's directory, `ports` maps port names to numbers.

    `listens` is where it may listen for others than this machine (`PortOpenToOthers`), `publish` names those of its
    ports that users of the engine's machine are to reach on its loopback.

    `secrets` names those that it gets; of a Ray head, those of the stage whose job it takes come to them.

    `answer_s` is a limit of a service that was ready, 0 for none. One with `keep` is not stopped after
    a stage whose next names it too.
    """

    name: str
    title: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    ports: Mapping[str, int]
    ready: Ready
    start_s: float
    log: str
    listens: tuple[str, ...] = ()
    publish: tuple[str, ...] = ()
    answer_s: float = 0.0
    keep: bool = False
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RayJobPlan:
    """The Ray Jobs API that the stage's command is submitted to; `service` is empty where a cluster's head has it."""

    dashboard: str
    service: str
    temp_dir: str
    submission_id: str


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """One stage with the rules of its gate; `directory` is relative to the run directory and holds its logs.

    `own_ray` says that the command starts a Ray head itself. `silence_stated` says that the job itself gives
    `silence_s`, which is then that of the phases that rlbox knows. `steps` is how many usual steps without one are a
    hang (0: never). `secrets` names those that its command gets.
    """

    name: str
    title: str
    directory: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    services: tuple[ServicePlan, ...]
    needs: tuple[FileRule, ...]
    ray: RayJobPlan | None
    total_s: float
    silence_s: float
    require: tuple[RequireRule, ...] = ()
    ordered: bool = False
    forbid: tuple[ForbidRule, ...] = ()
    benign: tuple[BenignRule, ...] = ()
    model_output: tuple[str, ...] = ()
    model_texts: tuple[IgnoredModelText, ...] = ()
    exit_codes: tuple[int, ...] = (0,)
    files: tuple[FileRule, ...] = ()
    metrics: tuple[MetricRule, ...] = ()
    probes: tuple[FinalProbe, ...] = ()
    listens: tuple[str, ...] = ()
    own_ray: bool = False
    attempt: int = 1
    phases: tuple[Phase, ...] = ()
    silence_stated: bool = True
    steps: UsualStepsBeforeHang = 20.0
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RayNodeAddress:
    """A node of the cluster that a run is on: where its Ray takes connections, as the others reach it."""

    name: str
    address: str
    port: int


@dataclass(frozen=True, kw_only=True)
class RunCluster:
    """The cluster that a run is on: its name, what keeps strangers out (token, tls, nothing), its nodes, head first.

    `words` mean the cluster behind `rlbox cluster up`, `options` behind `rlbox run --resume RUN`.
    """

    name: str
    closed: str
    nodes: tuple[RayNodeAddress, ...]
    words: str = ""
    options: str = ""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A whole run: what is written to `plan.json` before anything starts.

    `digest` is that of the specs and the lock it was made from. `attempt` counts from 1 with every resume; `begin_at`
    names the stage to begin again with (empty: the first that has not passed), `skipped` those that `--from --force`
    left out. `user`, `uid`, `host` started it last; `container` is a container's name, empty in place. `params` are as
    the commands get them, in the unit of `units`; `origins` say where each came from. `secrets` are the names of what
    comes over the supervisor's standard input, `aliases` groups of names that mean the same secret; `notes` are what a
    user must know of the run. `benign` are the lines of the fix catalogue that look bad and are not. `gpus` is what
    `--gpus` said. `network` is that which the run's processes are on (`own`: no other's), and `open` says that the user
    lets strangers reach them. `published` are the ports, by name, that the engine's machine has on its loopback.
    `hub` is what `{hub.NAME}` stands for, where that is a folder of locked files; a container gets them read-only.
    `next_steps` are what to try once it passed, as words behind `rlbox run JOB`. `cluster` is the one whose Ray takes
    the stages' jobs, None where the run's own head does. `shift_ports` was added to each of the job's ports.
    """

    run_id: str
    job: str
    target: str
    place: str
    profile: str
    params: Mapping[str, Scalar]
    paths: ProcessPaths
    env: Mapping[str, str]
    stages: tuple[StagePlan, ...]
    digest: str = ""
    attempt: int = 1
    begin_at: str = ""
    skipped: tuple[str, ...] = ()
    container: str = ""
    user: str = ""
    uid: int = -1
    host: str = ""
    origins: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    aliases: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    benign: tuple[FixBenignRule, ...] = ()
    gpus: str = ""
    network: str = "host"
    open: bool = False
    published: Mapping[str, int] = field(default_factory=dict)
    hub: Mapping[str, str] = field(default_factory=dict)
    next_steps: tuple[str, ...] = ()
    cluster: RunCluster | None = None
    shift_ports: int = 0
    schema: int = 1

    @property
    def runs_without_container(self) -> bool:
        """Whether rlbox itself watches over the run's processes and ends them; in a container its engine does."""
        return not self.container

    def as_json(self) -> dict[str, Any]:
        data: dict[str, Any] = _adapter().dump_python(self, mode="json")
        return data


def plan_run(
    job: Job,
    values: ParamValues,
    paths: ProcessPaths,
    *,
    run_id: str,
    place: str,
    target: str,
    secrets: tuple[str, ...] = (),
) -> RunPlan:
    """Return everything that the run will do; `SpecError` says where a placeholder names nothing."""
    values = _fill_hub_in_params(job, values)
    fill = PlaceholderFiller(job, values, paths)
    return RunPlan(
        run_id=run_id,
        job=job.name,
        target=target,
        place=place,
        profile=values.profile,
        params=dict(values.params),
        paths=paths,
        env=fill.fill_env("env", job.env, creates_pythonpath_for_source=True),
        stages=tuple(
            plan_stage(job, stage, number, fill, run_id)
            for number, stage in enumerate(select_stages(job, values.profile), start=1)
        ),
        origins=dict(values.origins),
        units=get_unit_by_param_except_fractions(job),
        secrets=secrets,
        hub=dict(values.hub),
        next_steps=job.next,
    )


def select_stages(job: Job, plus_joined_profiles: str) -> tuple[Stage, ...]:
    """Return the stages of a run with these profiles: those of every run, and theirs."""
    chosen = set(plus_joined_profiles.split("+"))
    return tuple(stage for stage in job.stages if not stage.profiles or chosen & set(stage.profiles))


def plan_stage(job: Job, stage: Stage, number: int, fill: PlaceholderFiller, run_id: str) -> StagePlan:
    again = fill.attempt > 1
    where = f"stages.{stage.name}"
    services = {service.name: service for service in job.services}
    ray = None
    if stage.ray:
        ray = RayJobPlan(
            dashboard=fill.fill_text(f"{where}.ray.dashboard", stage.ray.dashboard),
            service=stage.ray.service,
            temp_dir=fill.fill_text(f"{where}.ray.temp_dir", stage.ray.temp_dir),
            submission_id=f"{run_id}-{stage.name}" + (f"-{fill.attempt}" if again else ""),
        )
    return StagePlan(
        **dict(stage.gate.fill_placeholders(f"{where}.gate", fill.fill_text)),
        name=stage.name,
        title=stage.title,
        directory=f"stages/{number}-{stage.name}",
        argv=fill.fill_argv_dropping_empty_bool_params(f"{where}.command", stage.command)
        + (fill.fill_argv_dropping_empty_bool_params(f"{where}.resume", stage.resume) if again else ()),
        env=fill.fill_env(f"{where}.env", stage.env),
        services=tuple(_plan_service(job, services[name], fill) for name in stage.services),
        needs=tuple(rule.fill_placeholders(f"{where}.needs", fill.fill_text) for rule in stage.needs),
        listens=fill.fill_argv_dropping_empty_bool_params(f"{where}.listens", stage.listens),
        ray=ray,
        own_ray=stage.own_ray,
        total_s=stage.limits.total_s,
        silence_s=stage.limits.silence_s,
        phases=tuple(phase.fill_patterns(f"{where}.phases", fill.fill_text) for phase in stage.phases),
        silence_stated="silence_s" in stage.limits.model_fields_set,
        steps=stage.limits.steps,
        secrets=stage.secrets,
        attempt=fill.attempt,
    )


def _plan_service(job: Job, service: Service, fill: PlaceholderFiller) -> ServicePlan:
    where = f"services.{service.name}"
    ready = service.ready.fill_placeholders(f"{where}.ready", fill.fill_text)
    if ready.port:
        ready = ready.model_copy(update={"port": job.ports[str(ready.port)]})
    return ServicePlan(
        name=service.name,
        title=service.title,
        argv=fill.fill_argv_dropping_empty_bool_params(f"{where}.command", service.command),
        env=fill.fill_env(f"{where}.env", service.env),
        ports={name: job.ports[name] for name in service.ports},
        listens=fill.fill_argv_dropping_empty_bool_params(f"{where}.listens", service.listens),
        publish=service.publish,
        ready=ready,
        start_s=service.start_s,
        answer_s=service.answer_s,
        keep=service.keep,
        secrets=service.secrets,
        log=f"{service.name}.log",
    )


def replan_stages_for_resume(
    job: Job,
    previous_plan: RunPlan,
    next_attempt_by_stage: Mapping[str, int],
    set_options: Mapping[str, str] | None = None,
) -> RunPlan:
    """Return `previous_plan` with the stages that run now planned anew.

    `next_attempt_by_stage` counts from 1; from the second attempt on a stage gets the parameters of `[resume]` and its
    `resume` words. `set_options` hold for all stages that run now. Raises `SpecError` when the job lost a stage.
    """
    wanted = select_stages(job, previous_plan.profile)
    if [stage.name for stage in wanted] != [stage.name for stage in previous_plan.stages]:
        raise SpecError(
            _("job {job} no longer has the stages of run {run_id}: {stages}").format(
                job=job.name,
                run_id=previous_plan.run_id,
                stages=", ".join(stage.name for stage in previous_plan.stages),
            ),
            next_step=_("start a new run: rlbox run {job} --place {place}").format(
                job=job.name, place=previous_plan.place
            ),
        )
    known = {name: value for name, value in previous_plan.params.items() if name in job.params}
    values = ParamValues(
        profile=previous_plan.profile, params=known, origins=previous_plan.origins, hub=previous_plan.hub
    )
    fresh = apply_overrides(job, values, False, set_options or {})
    again = apply_overrides(job, values, True, set_options or {})
    now = again if any(attempt > 1 for attempt in next_attempt_by_stage.values()) else fresh
    stages = []
    for number, (stage, old) in enumerate(zip(wanted, previous_plan.stages, strict=True), start=1):
        attempt = next_attempt_by_stage.get(stage.name, 0)
        fill = PlaceholderFiller(job, again if attempt > 1 else fresh, previous_plan.paths, attempt)
        stages.append(plan_stage(job, stage, number, fill, previous_plan.run_id) if attempt else old)
    return replace(
        previous_plan,
        params=dict(now.params),
        origins=dict(now.origins),
        units=get_unit_by_param_except_fractions(job),
        stages=tuple(stages),
        notes=(*previous_plan.notes, *_list_resume_notes(job, next_attempt_by_stage)),
    )


def _list_resume_notes(job: Job, attempts: Mapping[str, int]) -> list[str]:
    changed = ", ".join(f"{name} = {format_scalar(value)}" for name, value in job.resume.params.items())
    said = job.resume.says + (f" ({changed})" if changed and job.resume.says else "")
    return [f"{name}, attempt {number}: {said}" for name, number in attempts.items() if number > 1 and said]


def parse_run_plan(data: Mapping[str, Any]) -> RunPlan:
    """`SpecError`: the data were written by another schema, or are no plan."""
    schema = data.get("schema") if isinstance(data, Mapping) else None
    if schema != 1:
        raise SpecError(_("plan.json has schema {schema!r}, this rlbox reads 1").format(schema=schema))
    try:
        return _adapter().validate_python(data, context=PLAN_CONTEXT)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SpecError(
            _("plan.json is not a plan of this rlbox: {key}: {msg}").format(key=key, msg=first["msg"])
        ) from error


@functools.lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[RunPlan]:
    return TypeAdapter(RunPlan)
