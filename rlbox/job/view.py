"""What a user may set of a job, for people: parameters, profiles, what a resumed run changes, secrets."""

from __future__ import annotations

from rlbox.job.job import Job
from rlbox.job.param import show_scalar
from rlbox.job.param_sets import included, lay
from rlbox.job.params import describe_param

TOLD = ("params", "profiles", "resume", "secrets", "optional_secrets")
"""The keys of a job that `job_lines` tells."""


def job_lines(job: Job) -> list[str]:
    """Return the lines on what can be set of `job`, with the defaults."""
    return [*_param_lines(job), *_profile_lines(job), *_resume_lines(job), *_secret_lines(job)]


def _param_lines(job: Job) -> list[str]:
    if not job.params:
        return []
    width = max(map(len, job.params))
    lines = ["# parameters: --set NAME=VALUE"]
    for name, param in job.params.items():
        value = "" if param.default is None else show_scalar(param.default)
        told = f"{name:<{width}} = {value:<10}"
        lines.append(f"{told} # {param.help} ({describe_param(param)})")
    return [*lines, ""]


def _profile_lines(job: Job) -> list[str]:
    lines = []
    for name, table in job.profiles.items():
        under = included(table)
        lines.append(f"# {f'--profile {name}'}" + (f": changes profile {', '.join(under)}" if under else ""))
        for key, (value, origin) in lay(job.profiles, [name]).items():
            told = f"{key} = {show_scalar(value)}"
            lines.append(told + (f"  # of profile {origin}" if origin != name else ""))
        lines.append("")
    return lines


def _resume_lines(job: Job) -> list[str]:
    if not job.resume.params and not job.resume.says:
        return []
    says = f": {job.resume.says}" if job.resume.says else ""
    return [f"# --resume{says}", *(f"{name} = {show_scalar(v)}" for name, v in job.resume.params.items()), ""]


def _secret_lines(job: Job) -> list[str]:
    rows = [(name, "required") for name in job.secrets] + [(name, "optional") for name in job.optional_secrets]
    if not rows:
        return []
    given = [(part.name, part.secrets) for part in job.services] + [(part.name, part.secrets) for part in job.stages]
    told = (f"{name}  # {what}, for {', '.join(part for part, names in given if name in names)}" for name, what in rows)
    return ["# secrets: from .env, --env-file or the environment", *told, ""]
