"""Read jobs."""

from __future__ import annotations

import functools

from rlbox.errors import SpecError
from rlbox.job.job import Job
from rlbox.spec.check import check_spec
from rlbox.spec.load import parse_toml, read_text, shown_path, without_name
from rlbox.spec.project import Project

_LOWEST, _HIGHEST = 1024, 65535


def load_job(project: Project, name: str) -> Job:
    """Return the job `name`; its errors are those of `load_target`."""
    path = project.job_file(name)
    shown = shown_path(path, project)
    return _job(name, shown, read_text(path, shown))


@functools.lru_cache(maxsize=64)
def _job(name: str, shown: str, text: str) -> Job:
    """Return the checked job; a text that was read before is not read again."""
    return check_spec(Job, {**without_name(parse_toml(text, shown), shown, "name"), "name": name}, shown)


def shift_ports(job: Job, by: int) -> Job:
    """Return `job` with `by` added to each port of its table.

    Raises
    ------
    SpecError
        A port would be none that a user may have.
    """
    ports = {name: number + by for name, number in job.ports.items()}
    for name, number in ports.items() if by else ():
        if not _LOWEST <= number <= _HIGHEST:
            raise SpecError(
                f"--shift-ports {by} moves port {name} of job {job.name} to {number}",
                next_step=f"name a number with which all of them are from {_LOWEST} to {_HIGHEST}",
            )
    return job.model_copy(update={"ports": ports})
