"""Read jobs."""

from __future__ import annotations

import functools

from pydantic import TypeAdapter, ValidationError

from rlbox.config.project import Project
from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import display_path, parse_toml, read_utf8_text, require_key_absent
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.job.job import Job
from rlbox.job.ports import HIGHEST, LOWEST, Port

_PORTS = TypeAdapter(dict[str, Port])


def load_job(project: Project, name: str) -> Job:
    path = project.require_job_file(name)
    shown = display_path(path, project)
    return _validate_job(name, shown, read_utf8_text(path, shown))


@functools.lru_cache(maxsize=64)
def _validate_job(name: str, shown: str, text: str) -> Job:
    return validate_spec(Job, {**require_key_absent(parse_toml(text, shown), shown, "name"), "name": name}, shown)


def load_target_ports_by_job_port(project: Project, target: str) -> dict[str, int]:
    """Return `JOB.PORT` to number of the jobs of a project that run on a target; no more of them is checked."""
    found: dict[str, int] = {}
    for name, path in project.jobs().items():
        shown = display_path(path, project)
        table = parse_toml(read_utf8_text(path, shown), shown)
        if table.get("target") != target:
            continue
        try:
            ports = _PORTS.validate_python(table.get("ports", {}), strict=True)
        except ValidationError:
            ports = load_job(project, name).ports  # which says what is wrong
        found |= {f"{name}.{port}": number for port, number in ports.items()}
    return found


def shift_ports(job: Job, by: int) -> Job:
    """Return `job` with `by` added to each port of its table.

    Raises SpecError: A port would be none that a user may have.
    """
    ports = {name: number + by for name, number in job.ports.items()}
    for name, number in ports.items() if by else ():
        if not LOWEST <= number <= HIGHEST:
            raise SpecError(
                _("--shift-ports {by} moves port {name} of job {job} to {number}").format(
                    by=by, name=name, job=job.name, number=number
                ),
                next_step=_("name a number with which all of them are from {lowest} to {highest}").format(
                    lowest=LOWEST, highest=HIGHEST
                ),
            )
    return job.model_copy(update={"ports": ports})
