"""Judge the environment of a shell: tokens, `.env`, numbers, proxies. Values of tokens are never repeated."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rlbox.doctor.check_group import CheckGroup
from rlbox.doctor.requirements import Requirements
from rlbox.findings import Finding
from rlbox.foreign import whole_number
from rlbox.i18n import _
from rlbox.secrets.masks import SECRETS_VARIABLE, is_secret_name

_PLACEHOLDER = re.compile(
    r"^(<.*>|\$\{?\w+\}?|x{3,}|your[-_ ].*|.*(changeme|change-me|replace[-_]me|placeholder).*|\.\.\.)$", re.I
)
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")
_LOCAL = ("localhost", "127.0.0.1")
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
# What programs of the stack read, and what notes of the field call the same token.
_OTHER_NAMES = {"WANDB_KEY": "WANDB_API_KEY", "HUGGINGFACE_TOKEN": "HF_TOKEN", "HF_KEY": "HF_TOKEN"}
# A socket's path has at most 107 bytes, and Ray adds /ray/session_DATE_TIME_PID/sockets/plasma_store (68).
_RAY_FOLDER = 39


@dataclass(frozen=True, kw_only=True)
class DotEnvFile:
    """One `.env` file: its names with their values, and lines that no shell takes as they are meant."""

    path: str
    values: Mapping[str, str] = field(default_factory=dict)
    broken_lines: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EnvironmentFacts:
    environ: Mapping[str, str]
    env_files: tuple[DotEnvFile, ...] = ()


def parse_dotenv(path: str, text: str) -> DotEnvFile:
    """Return what a `.env` file says; source: what `set -a; . ./.env` of a POSIX shell makes of it."""
    values: dict[str, str] = {}
    broken: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        found = re.match(r"^(?:export\s+)?([A-Za-z_]\w*)(\s*)=(\s*)(.*)$", bare)
        if not found:
            broken.append(_("line {number} is no NAME=value").format(number=number))
            continue
        name, before, after, value = found.groups()
        if before or (after and value and not value.startswith("#")):
            broken.append(_("line {number}: blanks around = of {name}").format(number=number, name=name))
        elif line.endswith("\r"):
            broken.append(
                _("line {number}: a carriage return ends the value of {name}").format(number=number, name=name)
            )
        values[name] = value.strip().strip("'\"")
    return DotEnvFile(path=path, values=values, broken_lines=tuple(broken))


def _broken_lines(facts: EnvironmentFacts, __: Requirements) -> Iterator[Finding]:
    for file in facts.env_files:
        if file.broken_lines:
            yield Finding(
                id="env-file-broken", title=_("lines of .env are not what a shell reads"),
                seen="; ".join(file.broken_lines[:4]),
                where=file.path,
                remedy=_("write NAME=value, no blanks around =, line ends of Unix (`sed -i 's/\\r$//'`)"),
                breaks=("env-not-exported", "token-*"), covers=("windows-line-ends",),
            )  # fmt: skip


def _not_exported(facts: EnvironmentFacts, __: Requirements) -> Iterator[Finding]:
    for file in facts.env_files:
        missing = sorted(name for name, value in file.values.items() if value and name not in facts.environ)
        if missing:
            yield Finding(
                id="env-not-exported", title=_("names of .env are not in the environment"),
                level="error" if any(map(is_secret_name, missing)) else "warning", seen=", ".join(missing),
                where=file.path, remedy=f"set -a; . {file.path}; set +a", breaks=("token-*",),
                covers=("env-not-exported",),
            )  # fmt: skip


def _without_value(facts: EnvironmentFacts, requirements: Requirements) -> Iterator[Finding]:
    for file in facts.env_files:
        empty = sorted(name for name, value in file.values.items() if not value and is_secret_name(name))
        if empty := [name for name in empty if not facts.environ.get(name)]:
            yield _unset(empty, file.path)
    asked = {name.strip() for name in facts.environ.get(SECRETS_VARIABLE, "").split(",")} - {""}
    asked |= {name for name, value in requirements.env.items() if not value and is_secret_name(name)}
    in_files = {name for file in facts.env_files for name in file.values}
    unset = sorted(name for name in asked - in_files if not facts.environ.get(name, "").strip())
    if unset:
        yield _unset(unset, "environment")
    hollow = {name for name, value in facts.environ.items() if is_secret_name(name) and not value.strip()}
    if given := sorted(hollow - asked - in_files):
        yield _unset(given, "environment")


def _placeholders(facts: EnvironmentFacts, __: Requirements) -> Iterator[Finding]:
    wrong = sorted(
        name
        for name, value in facts.environ.items()
        if is_secret_name(name) and (_PLACEHOLDER.match(value.strip()) or value != value.strip())
        if value.strip()
    )
    if wrong:
        yield Finding(
            id="token-placeholder", title=_("a token is a placeholder, or has blanks around it"), seen=", ".join(wrong),
            where=_("environment"), remedy=_("write the real token into .env and export it"),
            covers=("placeholder-left",),
        )  # fmt: skip


def _other_names(facts: EnvironmentFacts, __: Requirements) -> Iterator[Finding]:
    for name, right in _OTHER_NAMES.items():
        if facts.environ.get(name) and not facts.environ.get(right):
            yield Finding(
                id="token-name",
                title=_("{right} is not set, {name} is: programs read the former").format
                    (right=right, name=name), level="warning",
                seen=_("{name} is set, {right} is not").format(name=name, right=right), where=_("environment"),
                remedy=_("export {right}=\"${name}\"").format(right=right, name=name),
                covers=("wandb-key-missing",),
            )  # fmt: skip


def _unset(names: list[str], where: str) -> Finding:
    return Finding(
        id="token-unset", title=_("a token is asked for and not given"),
        seen=_("{names}: no value").format(names=', '.join(names)), where=where,
        remedy=_("write it into .env (mode 0600) and export it: set -a; . ./.env; set +a   # {name}").format
            (name=names[0]),
        covers=("wandb-key-missing", "hf-unauthorized"),
    )  # fmt: skip


def _numbers(facts: EnvironmentFacts, __: Requirements) -> Iterator[Finding]:
    environ = facts.environ
    wrong = [f"{name}={environ[name]}" for name in _THREADS if name in environ and not _positive(environ[name])]
    if wrong:
        yield Finding(
            id="threads-value", title=_("a number of threads is none"), seen=", ".join(wrong), where=_("environment"),
            remedy=_("set it to 1 or more, or unset it"), breaks=("torch-*",),
        )  # fmt: skip


def _positive(text: str) -> bool:
    return all((whole_number(part.strip()) or 0) > 0 for part in text.split(","))


def _proxy_for_localhost(facts: EnvironmentFacts, __: Requirements) -> Iterator[Finding]:
    environ = facts.environ
    proxies = [name for name in _PROXIES if environ.get(name)]
    spared = {part.strip() for name in ("no_proxy", "NO_PROXY") for part in environ.get(name, "").split(",")}
    if proxies and "*" not in spared and (missing := [name for name in _LOCAL if name not in spared]):
        yield Finding(
            id="proxy-for-localhost", title=_("requests to this machine go through the proxy"),
            seen=_("{proxies} set, no_proxy lacks {missing}").format
                (proxies=', '.join(proxies), missing=' and '.join(missing)), where="no_proxy",
            remedy=_("export no_proxy=localhost,127.0.0.1,::1 NO_PROXY=localhost,127.0.0.1,::1"),
            breaks=("ray-task*",), covers=("proxy-intercepts-localhost",),
        )  # fmt: skip


def _ray_folder(facts: EnvironmentFacts, __: Requirements) -> Iterator[Finding]:
    folder = facts.environ.get("RAY_TMPDIR", "")
    if len(folder) > _RAY_FOLDER:
        yield Finding(
            id="ray-tmpdir-long", title=_("Ray's temporary folder has a path too long for its sockets"),
            seen=_("{count} characters, {ray_folder} are the most").format
                (count=len(folder), ray_folder=_RAY_FOLDER), where=f"RAY_TMPDIR={folder}",
            remedy="export RAY_TMPDIR=/tmp", covers=("ray-temp-dir",),
        )  # fmt: skip


check_tokens = CheckGroup(checks=(_broken_lines, _not_exported, _without_value, _placeholders, _other_names))
"""What is wrong with tokens and `.env` files, the part that concerns a host too; only names of tokens are told."""
check_environment = CheckGroup(checks=(*check_tokens.checks, _numbers, _proxy_for_localhost, _ray_folder))
"""What is wrong with the environment of a shell."""


def probe_environment(environ: Mapping[str, str], env_file_dirs: tuple[str, ...]) -> EnvironmentFacts:
    """Return the environment with the `.env` files of `env_file_dirs`; the same file once."""
    files: dict[str, DotEnvFile] = {}
    for folder in env_file_dirs:
        path = os.path.join(folder, ".env")
        try:
            real = os.path.realpath(path)
            if os.path.isfile(real) and real not in files:
                with open(real, encoding="utf-8", errors="replace", newline="") as file:
                    files[real] = parse_dotenv(path, file.read())
        except OSError:
            continue
    return EnvironmentFacts(environ=environ, env_files=tuple(files.values()))
