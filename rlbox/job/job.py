"""The job: ordered stages with gates, and the services they need. The schema of `jobs/<job>.toml`.

Command words, addresses, paths and patterns may hold placeholders: `{param.NAME}`, `{port.NAME}`, `{run}` (run
directory), `{job}` (the job's own programs), `{data}` (data disk), `{python}` (the stack's interpreter), `{rlbox}`
(rlbox's own), with a table `[source]`, `{source}` (the framework's tree), and with `[[hub]]`, `{hub.NAME}` (the folder
of a locked model or data set, else the name of its repository).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, TypeAdapter, ValidationError, model_validator

from rlbox.config.hub import HubEntry, find_repeated_hub_name_problems
from rlbox.config.project import Project
from rlbox.config.schema import (
    EnvName,
    Name,
    PatternText,
    SpecModel,
    TranslatedText,
    ValidationProblems,
    did_you_mean_hint,
    validate_spec,
)
from rlbox.config.toml_files import format_spec_path, parse_toml, read_utf8_text, require_key_absent
from rlbox.config.units import Seconds
from rlbox.errors import SpecError, get_main_docs_url
from rlbox.i18n import _
from rlbox.job.fits import JobRequirements, find_fits_formula_problems
from rlbox.job.gate import FileRule, FillText, Gate, LineRule, MetricRule, Ready
from rlbox.job.names import SOURCE_PARAM, STAGE_LOG
from rlbox.job.param import (
    INCLUDE_KEY,
    Param,
    ParamName,
    ParamSet,
    Value,
    explain_if_example_placeholder,
    find_param_declaration_problems,
    find_param_value_problems,
    find_profile_problems_except_cycles,
)
from rlbox.secrets.masks import is_literal_secret

Word = Annotated[str, StringConstraints(min_length=1)]
LOWEST_PORT, HIGHEST_PORT = 1024, 65535
Port = Annotated[int, Field(ge=LOWEST_PORT, le=HIGHEST_PORT)]
PortOpenToOthers = Annotated[
    str,
    StringConstraints(pattern=r"^(ephemeral|\{port\.[a-z][a-z0-9_]*\}(\+[1-9]\d{0,2})?|[1-9]\d{0,4}(-[1-9]\d{0,4})?)$"),
]
"""A port, one with the COUNT after it `{port.NAME}+COUNT`, a range `FIRST-LAST`, or `ephemeral`: those that the kernel
gives to who asks for any."""
UsualStepsBeforeHang = Annotated[float, Field(ge=0)]

FLOORS: Mapping[str, float] = {
    "read": 16 * 1024,
    "write": 16 * 1024,
    "network": 128 * 1024,
    "memory": 1024 * 1024,
    "cpu": 0.2,
    "gpu": 0.35,
}
"""What an activity must reach to be a sign of life: bytes a second, cores, the share of a GPU's power limit.

Chosen so that what a hung run still does lies below. Measured: of Ray 2.60 the idle processes whose names do not tell
them from a worker read 3 kB/s, all others 15 kB/s (they are left out). An H200 whose kernel only polls a flag, as one
in a collective does, shows 100 % utilization, 0 % of memory utilization and 18 % of its power limit, like an idle
one; one that only multiplies in registers 42 %; one that copies 36 % of memory utilization at 31 % of its power.
"""


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _with_floors(value: Any) -> Any:
    """Turn `["read"]` into `{"read": FLOOR}`."""
    names = [name for name in value if isinstance(name, str)] if isinstance(value, (list, tuple, dict)) else []
    for name in names:
        if name not in FLOORS:
            raise ValueError(
                _("unknown activity {name!r}{suggest}; known: {floors}").format(
                    name=name, suggest=did_you_mean_hint(name, list(FLOORS)), floors=", ".join(FLOORS)
                )
            )
    return {name: FLOORS[name] for name in names} if isinstance(value, (list, tuple)) else value


Floor = Annotated[float, Field(gt=0)]
Patterns = Annotated[tuple[PatternText, ...], BeforeValidator(_one_or_more)]


_PHASE_LINES = ("begins", "ends")


class Phase(SpecModel):
    """A part of a stage's work that a line of its log begins; it lasts until another phase begins, or its end line."""

    name: Name = Field(description="name of the phase; replaces a built-in phase of the same name")
    begins: Annotated[Patterns, Field(min_length=1)] = Field(
        description="RE2 patterns, one or several; a matching line starts the phase"
    )
    ends: Patterns = Field(
        (), description="RE2 patterns; a matching line ends the phase; empty: the next phase ends it"
    )
    silence_s: Seconds = Field(description="longest time without a sign of life, seconds")
    progress: Annotated[dict[str, Floor], BeforeValidator(_with_floors)] = Field(
        default_factory=dict,
        description="signs of life: read, write, network, memory (bytes/s), cpu (cores), gpu (power share)",
    )
    remedy: str = Field("", description="suggested fix if the stage hangs in this phase")

    def fill_patterns(self, where: str, fill_text: FillText) -> Phase:
        filled = {key: tuple(fill_text(where, text, re.escape) for text in getattr(self, key)) for key in _PHASE_LINES}
        return self.model_copy(update=filled)


class Service(SpecModel):
    """A process that runs beside the stages that name it: started before, stopped after, in reverse order."""

    name: Name = Field(description="name of the service, unique in the job")
    title: TranslatedText = Field(description="one-line description of the service")
    command: tuple[Word, ...] = Field(min_length=1, description="program and arguments; may contain placeholders")
    ports: tuple[Word, ...] = Field(
        (), description="names of the job's ports that it listens on, for this machine only"
    )
    listens: tuple[PortOpenToOthers, ...] = Field(
        (), description=f"ports that other machines may reach; see {get_main_docs_url('jobs')}"
    )
    publish: tuple[Word, ...] = Field(
        (),
        description=f"names of its ports to publish at 127.0.0.1 of the Docker host; see {get_main_docs_url('jobs')}",
    )
    ready: Ready = Field(description="conditions for ready; all that are set must pass")
    start_s: Seconds = Field(120.0, description="time limit to become ready, seconds; longer while it gets on")
    answer_s: Annotated[float, Field(ge=0)] = Field(
        0.0, description="longest time without the expected response after ready, seconds; 0: not checked"
    )
    keep: bool = Field(False, description="keep running between consecutive stages that use the service")
    env: dict[EnvName, str] = Field(default_factory=dict, description="environment variables; override the job's")
    secrets: tuple[EnvName, ...] = Field((), description="names of the job's secrets that the service gets")


class RayJobSubmission(SpecModel):
    """The stage's command is the entrypoint of a job submitted through the Ray Jobs API."""

    dashboard: Word = Field(description="address of the Ray dashboard: http://127.0.0.1:{port.NAME}")
    service: Word = Field(description="name of the service that is the Ray head")
    temp_dir: Word = Field(description="--temp-dir of the Ray head, which contains the driver's log")


class StageTimeLimits(SpecModel):
    """How long a stage may take and be silent, seconds."""

    total_s: Seconds = Field(3600.0, description="longest duration of the stage, wall-clock seconds")
    silence_s: Seconds = Field(
        600.0, description="longest time without a sign of life, seconds; if set, also in built-in phases"
    )
    steps: UsualStepsBeforeHang = Field(
        20.0, description="usual step times without a new step or activity that mean a hang; 0: off"
    )


class Stage(SpecModel):
    """One step of staged running."""

    name: Name = Field(description="name of the stage, unique in the job")
    title: TranslatedText = Field(description="one-line description of the stage")
    command: tuple[Word, ...] = Field(min_length=1, description="program and arguments; may contain placeholders")
    services: tuple[Word, ...] = Field((), description="names of services that run during the stage")
    needs: tuple[FileRule, ...] = Field((), description="files that must exist and be complete before the stage starts")
    listens: tuple[PortOpenToOthers, ...] = Field(
        (), description="ports of the command that other machines may reach, as for services"
    )
    ray: RayJobSubmission | None = Field(None, description="submit the command as a Ray job; absent: run it directly")
    own_ray: bool = Field(False, description="the command starts its own Ray head, as verl does")
    env: dict[EnvName, str] = Field(default_factory=dict, description="environment variables; override the job's")
    secrets: tuple[EnvName, ...] = Field(
        (), description="names of the job's secrets for the command and, with ray, its head"
    )
    gate: Gate = Field(Gate(), description="pass criteria of the stage; default: exit code 0")
    limits: StageTimeLimits = Field(StageTimeLimits(), description="time limits and hang detection")
    phases: tuple[Phase, ...] = Field(
        (), description=f"your own phases, tried before the built-in ones; see {get_main_docs_url('hangs')}"
    )
    resume: tuple[Word, ...] = Field((), description="arguments to append to the command from the second attempt on")
    profiles: tuple[Name, ...] = Field((), description="run the stage only with one of these profiles; empty: always")


class Resume(SpecModel):
    """What changes for stages that are attempted again by `rlbox run --resume`."""

    says: str = Field("", description="what a resumed run loses; printed and recorded")
    params: dict[ParamName, Value] = Field(
        default_factory=dict, description="parameter values for the second and later attempts"
    )


class ClusterSuppliedValues(SpecModel):
    """What a run on a cluster that stands gets from it, in place of what the job says for machines by themselves."""

    ray: Word | None = Field(None, description="service that is the Ray head, replaced by the cluster; absent: none")
    params: dict[ParamName, Literal["head", "nodes", "node-gpus", "gpus"]] = Field(
        default_factory=dict, description="parameters to set: head address, number of nodes, GPUs per node, all GPUs"
    )
    ports: dict[ParamName, Literal["gcs", "dashboard", "client"]] = Field(
        default_factory=dict, description="ports of the job to replace with ports of the cluster"
    )


class FrameworkSource(SpecModel):
    """The framework that a job calls, for which `--set source=DIR` puts a work tree in front of the installed one."""

    package: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")] = Field(
        description="Python package in the work tree: DIR/PACKAGE"
    )
    version: Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)+")] = Field(
        description="version that the job is written for; another major or minor version is rejected"
    )
    installed: str = Field("", description="value of {source} without --set source: the tree in the image")


class Job(SpecModel):
    """What can be run: parameters, profiles, ports, services and stages."""

    name: Name
    title: TranslatedText = Field(description="one-line description of the job")
    target: Name = Field(description="default target; --target overrides it")
    params: dict[ParamName, Param] = Field(default_factory=dict, description="parameters by name, for --set NAME=VALUE")
    profiles: dict[Name, ParamSet] = Field(
        default_factory=dict, description="named sets of parameter values; include names other profiles to apply first"
    )
    resume: Resume = Field(Resume(), description="changes for stages that are attempted again")
    cluster: ClusterSuppliedValues | None = Field(
        None, description=f"settings for a multi-node run; absent: one machine only; see {get_main_docs_url('cluster')}"
    )
    source: FrameworkSource | None = Field(
        None, description=f"framework that --set source=DIR replaces; see {get_main_docs_url('jobs')}"
    )
    fits: JobRequirements | None = Field(
        None, description=f"required GPUs, memory and disk; absent: not checked; see {get_main_docs_url('planner')}"
    )
    next: tuple[Word, ...] = Field((), description="suggestions after a passed run: arguments of `rlbox run JOB`")
    secrets: tuple[EnvName, ...] = Field(
        (), description="names of required secrets; stages and services list the ones they get"
    )
    optional_secrets: tuple[EnvName, ...] = Field((), description="names of secrets to pass if they are set")
    hub: tuple[HubEntry, ...] = Field((), description="models and data sets that rlbox locks and fetches: {hub.NAME}")
    ports: dict[ParamName, Port] = Field(default_factory=dict, description="port numbers by name, 1024 to 65535")
    env: dict[EnvName, str] = Field(
        default_factory=dict, description="environment variables of all stages and services"
    )
    services: tuple[Service, ...] = Field((), description="processes that run next to stages")
    stages: tuple[Stage, ...] = Field(min_length=1, description="steps of the job, in order")

    @model_validator(mode="before")
    @classmethod
    def _source_is_a_param(cls, data: Any) -> Any:
        return _with_source_param(data)

    @model_validator(mode="after")
    def _references_hold(self) -> Job:
        problems = [*_param_problems(self), *_name_problems(self), *_cluster_problems(self)]
        problems += [*_secret_problems(self), *_placeholder_problems(self), *find_repeated_hub_name_problems(self.hub)]
        if self.fits:
            problems += find_fits_formula_problems(self.fits, self.params, [stage.name for stage in self.stages])
        if problems:
            raise ValidationProblems(problems)
        return self


def _with_source_param(job: Any) -> Any:
    table = job.get(SOURCE_PARAM) if isinstance(job, Mapping) else None
    if not isinstance(table, Mapping):
        return job
    params = job.get("params", {})
    if SOURCE_PARAM in params:
        raise ValueError(_("params.{source}: the table [{source}] declares it").format(source=SOURCE_PARAM))
    help_text = _("work tree of {package} {version} in place of the installed one; empty: none").format(
        package=table.get("package"), version=table.get("version")
    )
    return {**job, "params": {**params, SOURCE_PARAM: {"default": "", "help": help_text}}}


def _param_problems(job: Job) -> list[str]:
    problems = [line for name, param in job.params.items() for line in find_param_declaration_problems(name, param)]
    if problems:  # values are judged by declarations that hold
        return problems
    if INCLUDE_KEY in job.params:
        problems.append(_("params.{include}: the name is taken, profiles use it").format(include=INCLUDE_KEY))
    problems += find_profile_problems_except_cycles(job.profiles, job.params)
    return problems + find_param_value_problems("resume.params", job.resume.params, job.params)


def _find_unknown(where: str, kind: str, names: Iterable[str], known: Collection[str]) -> Iterator[str]:
    """Yield a problem for each of `names` that is not among the `known` ones; `kind` is the word for them."""
    for name in names:
        if name not in known:
            yield _("{where}: unknown {kind} {name!r}{suggest}").format(
                where=where, kind=kind, name=name, suggest=did_you_mean_hint(name, list(known))
            )


def _cluster_problems(job: Job) -> Iterator[str]:
    if job.cluster is None:
        return
    head = job.cluster.ray
    yield from _find_unknown("cluster.ray", _("service"), [head] if head else [], [s.name for s in job.services])
    yield from _find_unknown("cluster.params", _("parameter"), job.cluster.params, job.params)
    yield from _find_unknown("cluster.ports", _("port"), job.cluster.ports, job.ports)
    for stage in job.stages:
        if head in [rule.log for rules in _rules_with_log(stage.gate).values() for rule in rules]:
            yield _("cluster.ray: the gate of stage {stage} looks at a log that a cluster's head has not").format(
                stage=stage.name
            )


def _rules_with_log(gate: Gate) -> dict[str, tuple[LineRule | MetricRule, ...]]:
    return {"require": gate.require, "forbid": gate.forbid, "benign": gate.benign, "metrics": gate.metrics}


def _secret_problems(job: Job) -> Iterator[str]:
    declared = (*job.secrets, *job.optional_secrets)
    parts = {f"services.{s.name}": s for s in job.services} | {f"stages.{s.name}": s for s in job.stages}
    tables = {"env": job.env} | {f"{where}.env": part.env for where, part in parts.items()}
    for where, table in tables.items():
        for name, value in table.items():
            if name in declared:
                yield _(
                    "{where}.{name}: is a secret of the job, whose value comes from .env or the environment"
                ).format(where=where, name=name)
            elif "{" not in value and is_literal_secret(name, value):
                yield _("{where}.{name}: looks like a secret; write it into .env and its name into `secrets`").format(
                    where=where, name=name
                )
    for where, part in parts.items():
        yield from _find_unknown(f"{where}.secrets", _("secret"), part.secrets, declared)
    given = {name for part in parts.values() for name in part.secrets}
    for key, names in (("secrets", job.secrets), ("optional_secrets", job.optional_secrets)):
        for name in (name for name in names if name not in given):
            yield _(
                "{key}: {name} is given to nothing; name it in `secrets` of the stages and services that need it"
            ).format(key=key, name=name)
    for stage in job.stages:
        yield from _head_problems(job, stage, declared)


def _head_problems(job: Job, stage: Stage, secrets: Collection[str]) -> Iterator[str]:
    """A head that stays up would carry the secrets of one stage into the next."""
    head = next((service for service in job.services if stage.ray and service.name == stage.ray.service), None)
    for name in stage.secrets if head and head.keep else ():
        if head and name not in head.secrets and name in secrets:
            yield _(
                "stages.{stage}.secrets: its Ray head {head!r} is kept for later stages; name {name} in "
                "services.{head}.secrets"
            ).format(stage=stage.name, head=head.name, name=name)


def _placeholder_problems(job: Job) -> Iterator[str]:
    values = {f"env.{name}": value for name, value in job.env.items()}
    for key, parts in (("services", job.services), ("stages", job.stages)):
        for part in parts:
            values |= {f"{key}.{part.name}.command[{n}]": word for n, word in enumerate(part.command)}
            values |= {f"{key}.{part.name}.env.{name}": value for name, value in part.env.items()}
    yield from (
        f"{where}: {problem}" for where, value in values.items() if (problem := explain_if_example_placeholder(value))
    )


def _name_problems(job: Job) -> Iterator[str]:
    services = [service.name for service in job.services]
    for key, names in (("services", services), ("stages", [stage.name for stage in job.stages])):
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield _("{what}: two have the name {name!r}").format(what=key, name=name)
    for service in job.services:
        where = f"services.{service.name}"
        yield from _find_unknown(f"{where}.ports", _("port"), service.ports, job.ports)
        yield from _find_unknown(f"{where}.publish", _("port of the service"), service.publish, service.ports)
        ready_ports = [str(service.ready.port)] if service.ready.port else []
        yield from _find_unknown(f"{where}.ready.port", _("port of the service"), ready_ports, service.ports)
        if service.answer_s and not service.ready.url:
            yield _("{where}.answer_s: needs ready.url, the request that is asked again").format(where=where)
    for stage in job.stages:
        where = f"stages.{stage.name}"
        yield from _find_unknown(f"{where}.services", _("service"), stage.services, services)
        yield from _find_unknown(f"{where}.profiles", _("profile"), stage.profiles, job.profiles)
        heads = [stage.ray.service] if stage.ray else []
        yield from _find_unknown(f"{where}.ray.service", _("service of the stage"), heads, stage.services)
        yield from _stage_problems(where, stage)


def _stage_problems(where: str, stage: Stage) -> Iterator[str]:
    gate = stage.gate
    for key, rules in _rules_with_log(gate).items():
        for index, rule in enumerate(rules):
            logs = (STAGE_LOG, *stage.services)
            yield from _find_unknown(f"{where}.gate.{key}[{index}].log", _("service of the stage"), [rule.log], logs)
    for index, line in enumerate(gate.require):
        if line.within_s is not None and line.within_s > stage.limits.total_s:
            yield _("{where}.within_s: the stage is stopped before, limits.total_s is {total_s:g}").format(
                where=f"{where}.gate.require[{index}]", total_s=stage.limits.total_s
            )
    for index, problem in _hidden_exits(stage.command):
        yield f"{where}.command[{index}]: {problem}"
    if stage.ray and gate.exit_codes != (0,):
        yield _("{where}.exit_codes: Ray calls a driver that ends with anything but 0 FAILED; leave it out").format(
            where=f"{where}.gate"
        )


def _hidden_exits(command: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield the words of a command, a shell's script, that end well whatever happened in them, by index."""
    if command[0].rsplit("/", 1)[-1] not in ("sh", "bash", "dash", "zsh"):
        return
    for index, word in enumerate(command[1:], start=1):
        if re.search(r"\|&?\s*tee\b", word) and "pipefail" not in word and "PIPESTATUS" not in word:
            yield index, _("ends with the exit code of tee; leave tee out (the log is kept), or use set -o pipefail")
        if re.search(r"(?:\|\||;|\n)\s*(?:true|:)\s*;?\s*$", word):
            yield index, _("always succeeds, even after failures; leave the last `true` out")
        if re.search(r"[^&]&\s*$", word):
            yield index, _("leaves its work in the background and ends at once; leave the last & out")


_PORTS = TypeAdapter(dict[str, Port])


def load_job(project: Project, name: str) -> Job:
    path = project.require_job_file(name)
    shown = format_spec_path(path, project)
    return _validate_job(name, shown, read_utf8_text(path, shown))


@functools.lru_cache(maxsize=64)
def _validate_job(name: str, shown: str, text: str) -> Job:
    return validate_spec(Job, {**require_key_absent(parse_toml(text, shown), shown, "name"), "name": name}, shown)


def load_target_ports_by_job_dot_port(project: Project, target: str) -> dict[str, int]:
    """Return `JOB.PORT` to number of the jobs of a project that run on a target; no more of them is checked."""
    found: dict[str, int] = {}
    for name, path in project.own_pack_and_shipped_job_files().items():
        shown = format_spec_path(path, project)
        table = parse_toml(read_utf8_text(path, shown), shown)
        if table.get("target") != target:
            continue
        try:
            ports = _PORTS.validate_python(table.get("ports", {}), strict=True)
        except ValidationError:
            ports = load_job(project, name).ports  # which says what is wrong
        found |= {f"{name}.{port}": number for port, number in ports.items()}
    return found


def shift_ports(job: Job, offset: int) -> Job:
    """Return `job` with `offset` added to each port of its table.

    Raises SpecError: A port would be none that a user may have.
    """
    ports = {name: number + offset for name, number in job.ports.items()}
    for name, number in ports.items() if offset else ():
        if not LOWEST_PORT <= number <= HIGHEST_PORT:
            raise SpecError(
                _("--shift-ports {by} moves port {name} of job {job} to {number}").format(
                    by=offset, name=name, job=job.name, number=number
                ),
                next_step=_("name a number with which all of them are from {lowest} to {highest}").format(
                    lowest=LOWEST_PORT, highest=HIGHEST_PORT
                ),
            )
    return job.model_copy(update={"ports": ports})
