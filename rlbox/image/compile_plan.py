"""How a wheel is compiled: what the build sees and at which paths, how many compilers at a time, what is started."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlbox.artifacts.git_tree import EPOCH
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.target.compiled import Compile
from rlbox.target.lock import build_env
from rlbox.target.target import Target
from rlbox.values import Command

BOX = "/mnt/rlbox"
"""The build's own folder as the build sees it: a fixed path, for paths get into what is compiled."""
_TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")  # a distribution's Python calls its compilers by these
WRAPPED = ("cc", "c++", "gcc", "g++", *(f"{triplet}-{name}" for triplet in _TRIPLETS for name in ("gcc", "g++")))
"""Compilers of a system that `launch.sh` stands before, those that are there; nvcc it stands before always."""
_LEGACY = "setuptools.build_meta:__legacy__"
_SPACES = ("--mount", "--pid", "--net", "--ipc", "--uts")


@dataclass(frozen=True, kw_only=True)
class BuildFolders:
    """Folders of this machine: the root of the `system`, the build's own `box`, what it imports, objects it keeps."""

    system: str
    box: str
    site: str
    objects: str


@dataclass(frozen=True, kw_only=True)
class BuildRoom:
    """What this machine has for a build: cores, and memory in bytes."""

    cores: int
    memory: int


def plan_jobs(entry: Compile, room: BuildRoom, most: int = 0) -> int:
    """Return how many compilers are started at a time: as many as memory and cores take, at least one.

    Parameters
    ----------
    most
        No more than these; 0: no limit. `MAX_JOBS` of the spec is one, too.
    """
    by_memory = math.floor(room.memory / (entry.memory_gib * 2**30))
    limits = [room.cores, by_memory, *([most] if most else [])]
    limits += [int(text)] if (text := entry.env.get("MAX_JOBS", "")).isdigit() else []
    return max(1, min(limits))


def plan_env(target: Target, entry: Compile, jobs: int, libraries: Iterable[str] = ()) -> dict[str, str]:
    """Return the whole environment of a build; nothing of the caller's is in it.

    Parameters
    ----------
    libraries
        Folders below `nvidia` of what the build imports (`cudnn`): their headers and libraries are found without a
        setting of the spec.
    """
    cuda = f"{BOX}/site/nvidia/cu{entry.cuda.partition('.')[0]}"
    path = f"{BOX}/bin:{BOX}/site/bin:{cuda + '/bin:' if entry.cuda else ''}/usr/bin:/bin"
    fixed = {
        "HOME": f"{BOX}/home",
        "LC_ALL": "C.UTF-8",
        "PATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": f"{BOX}/site",
        "SOURCE_DATE_EPOCH": str(EPOCH),
        "TZ": "UTC",
    }
    if entry.cuda:
        fixed |= {"CUDACXX": f"{BOX}/bin/nvcc", "CUDA_HOME": cuda, "CUDA_PATH": cuda, "PYTORCH_NVCC": f"{BOX}/bin/nvcc"}
    folders = [f"{BOX}/site/nvidia/{name}" for name in libraries]
    search = {
        "CPATH": ":".join(f"{folder}/include" for folder in folders),
        "LIBRARY_PATH": ":".join(f"{folder}/lib" for folder in folders),
    }
    at_once = {"CMAKE_BUILD_PARALLEL_LEVEL": str(jobs), "MAKEFLAGS": f"-j{jobs}", "MAX_JOBS": str(jobs)}
    return {"NVCC_THREADS": "1", **(search if folders else {}), **build_env(target, entry), **fixed, **at_once}


def plan_build(
    folders: BuildFolders, programs: str, python: Sequence[str], env: Mapping[str, str], *, source: str, mapped: bool
) -> Command:
    """Return the command that builds a wheel in namespaces of its own: no network, fixed paths, one process tree.

    Parameters
    ----------
    programs
        Folder of `enter.sh`.
    python
        The interpreter, then the build backend of the source and the folders to find it in (`source_backend`).
    source
        Folder of the source that is built, empty for its top.
    mapped
        Whether a user namespace is made, too, so that no privilege is needed.
    """
    spaces = (*(("--user", "--map-root-user") if mapped else ()), *_SPACES, "--fork", "--kill-child")
    enter = ("sh", f"{programs}/enter.sh", folders.system, folders.box, folders.site, folders.objects)
    words = ("env", "-i", f"--chdir={BOX}/source/{source}", *(f"{name}={text}" for name, text in sorted(env.items())))
    return Command(
        argv=("unshare", *spaces, *enter, *words, python[0], f"{BOX}/build_wheel.py", f"{BOX}/out", *python[1:])
    )


def source_backend(project: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the build backend that a pyproject.toml names, then the folders to find it in.

    Raises
    ------
    SpecError
        `build-system` is not what the standard says. Source: PEP 517.
    """
    system = project.get("build-system", {})
    backend = system.get("build-backend", _LEGACY) if isinstance(system, Mapping) else None
    folders = system.get("backend-path", []) if isinstance(system, Mapping) else None
    if (
        not isinstance(backend, str)
        or not isinstance(folders, list)
        or not all(isinstance(one, str) for one in folders)
    ):
        raise SpecError(
            _("the source's pyproject.toml has no valid build-system"), where="build-backend and backend-path"
        )
    return (backend, *folders)
