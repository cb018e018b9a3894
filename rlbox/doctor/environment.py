"""The environment of a shell: tokens, `.env`, numbers, proxies, search paths. Values of tokens are never repeated."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rlbox.doctor.catalogue import make_finding
from rlbox.doctor.requirements import Requirements
from rlbox.findings import Finding, Level
from rlbox.foreign import parse_digits
from rlbox.i18n import _
from rlbox.secrets.env_file import ParsedEnvFile, parse_env_with_problems
from rlbox.secrets.masks import SECRETS_VARIABLE, name_looks_like_secret

_LISTS = ("LD_LIBRARY_PATH", "LIBRARY_PATH", "PATH", "PYTHONPATH", "CPATH")
_PROGRAMS = ("python3", "python", "ray", "vllm", "torchrun", "accelerate")
_LOADER_DIR = Path("/etc/ld.so.conf.d")
_LOADER_LINE = re.compile(r"/(stubs|compat)/?$")
_DEFAULT_CUDA = "/usr/local/cuda"
_CUDA_FILES = {"bin/nvcc": ("bin/nvcc",), "lib64/libcudart.so": ("lib64/libcudart.so", "lib/libcudart.so")}
_PLACEHOLDER = re.compile(
    r"^(<.*>|\$\{?\w+\}?|x{3,}|your[-_ ].*|.*(changeme|change-me|replace[-_]me|placeholder).*|\.\.\.)$", re.I
)
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")
_LOCAL = ("localhost", "127.0.0.1")
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
# A socket's path has at most 107 bytes, and Ray adds /ray/session_DATE_TIME_PID/sockets/plasma_store (68).
_RAY_FOLDER = 39


def _read_dotenv_files(directories: Sequence[str]) -> dict[str, ParsedEnvFile]:
    """Return the `.env` files by path, each file once."""
    files: dict[str, tuple[str, ParsedEnvFile]] = {}
    for path in (Path(directory, ".env") for directory in directories):
        with contextlib.suppress(OSError):
            real = os.path.realpath(path)
            if os.path.isfile(real) and real not in files:
                data = path.read_bytes()
                file = parse_env_with_problems(data)
                ends = (_("Windows line ends"),) if b"\r\n" in data else ()
                files[real] = str(path), replace(file, problems=(*file.problems, *ends))
    return dict(files.values())


def check_environment_variables(
    environ: Mapping[str, str], dotenv_dirs: Sequence[str], requirements: Requirements
) -> Iterator[Finding]:
    yield from check_tokens_and_dotenv_files(environ, dotenv_dirs, requirements)
    counts = {name: environ[name].split(",") for name in _THREADS if name in environ}
    if wrong := [name for name, row in counts.items() if any((parse_digits(one.strip()) or 0) < 1 for one in row)]:
        yield make_finding("threads-value", seen=", ".join(f"{name}={environ[name]}" for name in wrong))
    proxies = [name for name in _PROXIES if environ.get(name)]
    spared = {part.strip() for name in ("no_proxy", "NO_PROXY") for part in environ.get(name, "").split(",")}
    if proxies and "*" not in spared and (missing := [name for name in _LOCAL if name not in spared]):
        yield make_finding("proxy-for-localhost", proxies=", ".join(proxies), missing=" and ".join(missing))
    if len(folder := environ.get("RAY_TMPDIR", "")) > _RAY_FOLDER:
        yield make_finding("ray-tmpdir-long", count=len(folder), ray_folder=_RAY_FOLDER, folder=folder)


def check_tokens_and_dotenv_files(
    environ: Mapping[str, str], dotenv_dirs: Sequence[str], requirements: Requirements
) -> Iterator[Finding]:
    """Yield what is wrong with tokens and `.env` files, which concerns a host too; only names of tokens are told."""
    files = _read_dotenv_files(dotenv_dirs)
    for path, file in files.items():
        yield from _check_dotenv(path, file, environ)
    in_files = {name for file in files.values() for name in file.values}
    given = {name: value.strip() for name, value in environ.items() if name_looks_like_secret(name)}
    required = {name.strip() for name in environ.get(SECRETS_VARIABLE, "").split(",")} - {""}
    required |= {name for name, value in requirements.env.items() if not value and name_looks_like_secret(name)}
    empty = {name for name in required if not environ.get(name, "").strip()}
    empty |= {name for name, value in given.items() if not value}
    if unset := sorted(empty - in_files):
        yield make_finding("token-unset", where="environment", names=", ".join(unset), name=unset[0])
    placeholders = [name for name, value in given.items() if _PLACEHOLDER.match(value) or value != environ[name]]
    if wrong := sorted(name for name in placeholders if given[name]):
        yield make_finding("token-placeholder", seen=", ".join(wrong))


def _check_dotenv(path: str, file: ParsedEnvFile, environ: Mapping[str, str]) -> Iterator[Finding]:
    if file.problems:
        yield make_finding("env-file-broken", seen="; ".join(file.problems[:4]), where=path)
    if missing := sorted(name for name, value in file.values.items() if value and name not in environ):
        level: Level = "error" if any(map(name_looks_like_secret, missing)) else "warning"
        yield make_finding("env-not-exported", level=level, seen=", ".join(missing), where=path, path=path)
    empty = sorted(name for name, value in file.values.items() if not (value or environ.get(name)))
    if secrets := [name for name in empty if name_looks_like_secret(name)]:
        yield make_finding("token-unset", where=path, names=", ".join(secrets), name=secrets[0])


def check_venv_programs_libraries_and_cuda_home(
    environ: Mapping[str, str], requirements: Requirements, venv: str
) -> list[Finding]:
    if broken := list(_check_python(f"{venv}/bin/python")):
        return broken
    return [
        *_check_programs(environ, venv),
        *_check_lib64(f"{venv}/lib64"),
        *_check_libraries(environ, requirements, _read_loader_lines()),
        *_check_empty_elements(environ),
        *_check_cuda_home(environ.get("CUDA_HOME", "")),
    ]


def _check_python(python: str) -> Iterator[Finding]:
    if os.access(python, os.X_OK):
        return
    problem = _("cannot be executed") if os.path.exists(python) else _("is missing")
    yield make_finding("stack-python", python=python, problem=problem)


def _check_programs(environ: Mapping[str, str], venv: str) -> Iterator[Finding]:
    names = [name for name in _PROGRAMS if name.startswith("python") or os.path.lexists(f"{venv}/bin/{name}")]
    paths = {name: shutil.which(name, path=environ.get("PATH", "")) or "" for name in names}
    own = os.path.realpath(f"{venv}/bin")  # a link into the environment counts as the environment
    wrong = {name: path for name, path in paths.items() if os.path.realpath(os.path.dirname(path)) != own}
    texts = [
        _("{name} is {path}").format(name=name, path=path or _("not found")) for name, path in sorted(paths.items())
    ]
    if wrong:
        finding_id = "path-shadowed" if any(wrong.values()) else "ray-not-on-path"
        yield make_finding("path-shadowed", id=finding_id, seen=", ".join(texts), right=f"{venv}/bin")


def _check_lib64(path: str) -> Iterator[Finding]:
    if os.path.islink(path) and os.path.isdir(path):
        return
    if os.path.islink(f"{path}/lib"):  # `ln -s` into a real directory makes the link inside it
        yield make_finding("lib64-nested", where=path, path=path)
    elif not os.path.isdir(path):
        seen = _("lib64 is a link to nothing") if os.path.islink(path) else _("there is no lib64")
        yield make_finding("lib64-missing", seen=seen, where=path, path=path)


def _check_libraries(
    environ: Mapping[str, str], requirements: Requirements, loader_lines: list[str]
) -> Iterator[Finding]:
    runtime, linker = _split(environ, "LD_LIBRARY_PATH"), _split(environ, "LIBRARY_PATH")
    stubs = [path for path in runtime if _is_stubs(path)]
    after = [path for index, path in enumerate(linker) if not _is_stubs(path) and any(map(_is_stubs, linker[:index]))]
    texts = [_("LD_LIBRARY_PATH has {word}").format(word=path) for path in stubs]
    texts += [_("the loader is told {line}").format(line=line) for line in loader_lines if "stubs" in line]
    texts += [_("LIBRARY_PATH has stubs before {word}").format(word=path) for path in after]
    if texts:
        where = "LD_LIBRARY_PATH" if stubs else "LIBRARY_PATH" if after else str(_LOADER_DIR)
        yield make_finding("cuda-stubs-order", seen="; ".join(texts), where=where)
    compat = [path for path in (*runtime, *loader_lines) if path.rstrip("/").endswith("/compat")]
    if compat and requirements.grade in ("consumer", "workstation"):
        yield make_finding("cuda-compat-shadows-driver", seen=", ".join(compat))


def _is_stubs(path: str) -> bool:
    return "stubs" in path.rstrip("/").rpartition("/")[2]


def _split(environ: Mapping[str, str], name: str) -> list[str]:
    return [path for path in environ.get(name, "").split(":") if path]


def _read_loader_lines() -> list[str]:
    return [
        f"{file.name}: {line.strip()}"
        for file in sorted(_LOADER_DIR.glob("*.conf"))
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
        if _LOADER_LINE.search(line.strip())
    ]


def _check_empty_elements(environ: Mapping[str, str]) -> Iterator[Finding]:
    if names := [name for name in _LISTS if environ.get(name) and "" in environ[name].split(":")]:
        seen = ", ".join(f"{name}={environ[name]}" for name in names)
        yield make_finding("empty-path-element", level="warning", seen=seen, where=", ".join(names))


def _check_cuda_home(variable: str) -> Iterator[Finding]:
    home = variable or (_DEFAULT_CUDA if os.path.islink(_DEFAULT_CUDA) else "")
    if not home:
        return
    missing = [_("the folder itself")] if not os.path.isdir(home) else []
    if variable and not missing:
        missing = [name for name, names in _CUDA_FILES.items() if not any(os.path.exists(f"{home}/{n}") for n in names)]
    if missing:
        yield make_finding("cuda-home", cuda_home=home, cuda_missing=", ".join(missing))
