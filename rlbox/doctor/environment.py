"""The environment of a shell: tokens, `.env`, numbers, proxies. Values of tokens are never repeated."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rlbox.doctor.catalogue import make_finding
from rlbox.doctor.requirements import Requirements
from rlbox.findings import Finding, Level
from rlbox.foreign import whole_number
from rlbox.i18n import _
from rlbox.secrets.masks import SECRETS_VARIABLE, is_secret_name

_PLACEHOLDER = re.compile(
    r"^(<.*>|\$\{?\w+\}?|x{3,}|your[-_ ].*|.*(changeme|change-me|replace[-_]me|placeholder).*|\.\.\.)$", re.I
)
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")
_LOCAL = ("localhost", "127.0.0.1")
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
# A socket's path has at most 107 bytes, and Ray adds /ray/session_DATE_TIME_PID/sockets/plasma_store (68).
_RAY_FOLDER = 39


@dataclass(frozen=True, kw_only=True)
class DotEnvFile:
    """One `.env` file: its names with their values, and lines that no shell takes as they are meant."""

    path: str
    values: Mapping[str, str] = field(default_factory=dict)
    broken_line_messages: tuple[str, ...] = ()


def parse_dotenv(path: str, text: str) -> DotEnvFile:
    """Return what a `.env` file says; source: what `set -a; . ./.env` of a POSIX shell makes of it."""
    values: dict[str, str] = {}
    broken: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        match = re.match(r"^(?:export\s+)?([A-Za-z_]\w*)(\s*)=(\s*)(.*)$", bare)
        if not match:
            broken.append(_("line {number} is not NAME=value").format(number=number))
            continue
        name, before, after, value = match.groups()
        if before or (after and value and not value.startswith("#")):
            broken.append(_("line {number}: blanks around = of {name}").format(number=number, name=name))
        elif line.endswith("\r"):
            message = _("line {number}: a carriage return ends the value of {name}")
            broken.append(message.format(number=number, name=name))
        values[name] = value.strip().strip("'\"")
    return DotEnvFile(path=path, values=values, broken_line_messages=tuple(broken))


def read_dotenv_files(directories: Sequence[str]) -> list[DotEnvFile]:
    files: dict[str, DotEnvFile] = {}
    for path in (os.path.join(directory, ".env") for directory in directories):
        try:
            real = os.path.realpath(path)
            if os.path.isfile(real) and real not in files:
                with open(real, encoding="utf-8", errors="replace", newline="") as file:
                    files[real] = parse_dotenv(path, file.read())
        except OSError:
            continue
    return list(files.values())


def check_environment(
    environ: Mapping[str, str], dotenv_dirs: Sequence[str], requirements: Requirements
) -> Iterator[Finding]:
    yield from check_tokens_and_dotenv_files(environ, dotenv_dirs, requirements)
    if wrong := [f"{name}={environ[name]}" for name in _THREADS if not _are_positive(environ.get(name, "1"))]:
        yield make_finding("threads-value", seen=", ".join(wrong))
    proxies = [name for name in _PROXIES if environ.get(name)]
    spared = {part.strip() for name in ("no_proxy", "NO_PROXY") for part in environ.get(name, "").split(",")}
    if proxies and "*" not in spared and (missing := [name for name in _LOCAL if name not in spared]):
        yield make_finding("proxy-for-localhost", proxies=", ".join(proxies), missing=" and ".join(missing))
    if len(folder := environ.get("RAY_TMPDIR", "")) > _RAY_FOLDER:
        yield make_finding("ray-tmpdir-long", count=len(folder), ray_folder=_RAY_FOLDER, folder=folder)


def _are_positive(numbers: str) -> bool:
    return all((whole_number(part.strip()) or 0) > 0 for part in numbers.split(","))


def check_tokens_and_dotenv_files(
    environ: Mapping[str, str], dotenv_dirs: Sequence[str], requirements: Requirements
) -> Iterator[Finding]:
    """Yield what is wrong with tokens and `.env` files, which concerns a host too; only names of tokens are told."""
    files = read_dotenv_files(dotenv_dirs)
    for file in files:
        yield from _check_dotenv(file, environ)
    in_files = {name for file in files for name in file.values}
    given = {name: value.strip() for name, value in environ.items() if is_secret_name(name)}
    required = {name.strip() for name in environ.get(SECRETS_VARIABLE, "").split(",")} - {""}
    required |= {name for name, value in requirements.env.items() if not value and is_secret_name(name)}
    empty = {name for name in required if not environ.get(name, "").strip()}
    empty |= {name for name, value in given.items() if not value}
    if unset := sorted(empty - in_files):
        yield make_finding("token-unset", where="environment", names=", ".join(unset), name=unset[0])
    placeholders = [name for name, value in given.items() if _PLACEHOLDER.match(value) or value != environ[name]]
    if wrong := sorted(name for name in placeholders if given[name]):
        yield make_finding("token-placeholder", seen=", ".join(wrong))


def _check_dotenv(file: DotEnvFile, environ: Mapping[str, str]) -> Iterator[Finding]:
    if file.broken_line_messages:
        yield make_finding("env-file-broken", seen="; ".join(file.broken_line_messages[:4]), where=file.path)
    if missing := sorted(name for name, value in file.values.items() if value and name not in environ):
        level: Level = "error" if any(map(is_secret_name, missing)) else "warning"
        yield make_finding("env-not-exported", level=level, seen=", ".join(missing), where=file.path, path=file.path)
    empty = sorted(name for name, value in file.values.items() if not (value or environ.get(name)))
    if secrets := [name for name in empty if is_secret_name(name)]:
        yield make_finding("token-unset", where=file.path, names=", ".join(secrets), name=secrets[0])
