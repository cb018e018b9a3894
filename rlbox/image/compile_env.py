"""How a wheel is compiled: what the build sees and at which paths, how many compilers at a time, what is started."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from uv import find_uv_bin

from rlbox.amounts import duration_text
from rlbox.app import App
from rlbox.artifacts.git_tree import TAR_MTIME
from rlbox.artifacts.object_store import ObjectStore
from rlbox.errors import MachineError, SpecError, WorkFailed
from rlbox.foreign import parse_untrusted_toml
from rlbox.i18n import _
from rlbox.image.bootstrap import ensure_cached_rootfs_archive
from rlbox.image.plan import hash_rootfs_inputs
from rlbox.system.command import PIPE, STDOUT, ProcessHandle, run_command, run_command_or_raise, start_command
from rlbox.system.files import cache_path, write_atomic
from rlbox.system.limits import get_available_memory_bytes
from rlbox.system.progress import ProgressItem, show_progress
from rlbox.system.safe_files import remove_tree
from rlbox.system.tail import read_tail_lines_or_empty
from rlbox.target.compiled import Compile
from rlbox.target.lock import (
    CompileInputs,
    GitTree,
    Lock,
    Package,
    format_requirements,
    make_compile_env_without_max_jobs,
)
from rlbox.target.target import Target
from rlbox.values import Command

BUILD_MOUNT = "/mnt/rlbox"
"""The build's own folder as the build sees it: a fixed path, for paths get into what is compiled."""
_TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")  # a distribution's Python calls its compilers by these
WRAPPED_COMPILERS = (
    "cc",
    "c++",
    "gcc",
    "g++",
    *(f"{triplet}-{name}" for triplet in _TRIPLETS for name in ("gcc", "g++")),
)
"""Compilers of a system that `launch.sh` stands before, those that are there; nvcc it stands before always."""
_LEGACY = "setuptools.build_meta:__legacy__"
_SPACES = ("--mount", "--pid", "--net", "--ipc", "--uts")


@dataclass(frozen=True, kw_only=True)
class BuildDirs:
    """Directories of this machine that a build sees; `site_dir` has what it imports."""

    system_root: str
    build_dir: str
    site_dir: str
    object_cache_dir: str


def choose_job_count(entry: Compile, max_jobs: int | None) -> int:
    """Return how many compilers are started at a time: as many as memory and cores take, at least one.

    `MAX_JOBS` of the spec is a limit as `max_jobs` is.
    """
    by_memory = math.floor(get_available_memory_bytes() / (entry.memory_gib * 2**30))
    limits = [len(os.sched_getaffinity(0)), by_memory, *([max_jobs] if max_jobs else [])]
    limits += [int(text)] if (text := entry.env.get("MAX_JOBS", "")).isdigit() else []
    return max(1, min(limits))


def plan_isolated_build_environment(
    target: Target, entry: Compile, jobs: int, nvidia_library_names: Iterable[str] = ()
) -> dict[str, str]:
    """Return the whole environment of a build; nothing of the caller's is in it.

    `nvidia_library_names`: Folders below `nvidia` of what the build imports (`cudnn`): their headers and libraries are
      found without a setting of the spec.
    """
    cuda = f"{BUILD_MOUNT}/site/nvidia/cu{entry.cuda.partition('.')[0]}"
    path = f"{BUILD_MOUNT}/bin:{BUILD_MOUNT}/site/bin:{cuda + '/bin:' if entry.cuda else ''}/usr/bin:/bin"
    fixed = {
        "HOME": f"{BUILD_MOUNT}/home",
        "LC_ALL": "C.UTF-8",
        "PATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": f"{BUILD_MOUNT}/site",
        "SOURCE_DATE_EPOCH": str(TAR_MTIME),
        "TZ": "UTC",
    }
    if entry.cuda:
        fixed |= {
            "CUDACXX": f"{BUILD_MOUNT}/bin/nvcc",
            "CUDA_HOME": cuda,
            "CUDA_PATH": cuda,
            "PYTORCH_NVCC": f"{BUILD_MOUNT}/bin/nvcc",
        }
    folders = [f"{BUILD_MOUNT}/site/nvidia/{name}" for name in nvidia_library_names]
    search = {
        "CPATH": ":".join(f"{folder}/include" for folder in folders),
        "LIBRARY_PATH": ":".join(f"{folder}/lib" for folder in folders),
    }
    at_once = {"CMAKE_BUILD_PARALLEL_LEVEL": str(jobs), "MAKEFLAGS": f"-j{jobs}", "MAX_JOBS": str(jobs)}
    return {
        "NVCC_THREADS": "1",
        **(search if folders else {}),
        **make_compile_env_without_max_jobs(target, entry),
        **fixed,
        **at_once,
    }


class BackendAndPath(NamedTuple):
    backend: str
    backend_path: tuple[str, ...]


def _plan_wheel_build_command(
    dirs: BuildDirs,
    interpreter_path: str,
    backend: BackendAndPath,
    env: Mapping[str, str],
    *,
    source_subdir: str,
    create_user_namespace: bool,
) -> Command:
    """Return the command that builds a wheel in namespaces of its own: no network, fixed paths, one process tree.

    `source_subdir`: Folder of the source that is built, empty for its top.
    `create_user_namespace`: Whether a user namespace is made, too, so that no privilege is needed.
    """
    spaces = (*(("--user", "--map-root-user") if create_user_namespace else ()), *_SPACES, "--fork", "--kill-child")
    enter = ("sh", f"{PROGRAMS_DIR}/enter.sh", dirs.system_root, dirs.build_dir, dirs.site_dir, dirs.object_cache_dir)
    words = (
        "env",
        "-i",
        f"--chdir={BUILD_MOUNT}/source/{source_subdir}",
        *(f"{name}={text}" for name, text in sorted(env.items())),
    )
    return Command(
        argv=(
            "unshare",
            *spaces,
            *enter,
            *words,
            interpreter_path,
            f"{BUILD_MOUNT}/build_wheel.py",
            f"{BUILD_MOUNT}/out",
            backend.backend,
            *backend.backend_path,
        )
    )


def parse_build_backend_or_setuptools_and_path(pyproject: Mapping[str, Any]) -> BackendAndPath:
    """Return the build backend that a pyproject.toml names, setuptools where it names none.

    Raises SpecError: `build-system` is not what the standard says. Source: PEP 517.
    """
    system = pyproject.get("build-system", {})
    if isinstance(system, Mapping):
        backend, dirs = system.get("build-backend", _LEGACY), system.get("backend-path", [])
        if isinstance(backend, str) and isinstance(dirs, list) and all(isinstance(one, str) for one in dirs):
            return BackendAndPath(backend, tuple(dirs))
    raise SpecError(_("the source's pyproject.toml has no valid build-system"), where="build-backend and backend-path")


PROGRAMS_DIR = Path(__file__).with_name("programs")
_INSTALL_S = 1800.0


class RootDirAndInterpreter(NamedTuple):
    root_dir: str
    interpreter_path: str


def ensure_rootfs_unpacked_or_use_host(target: Target, lock: Lock, store: ObjectStore) -> RootDirAndInterpreter:
    """Return the system that a build sees: of the lock's own apt packages, or this machine's for a base image.

    Raises MachineError: this machine has no Python of that version, or no C++ compiler.
    """
    if not lock.toolchain:
        return RootDirAndInterpreter("/", _own_python(target.python.version))
    system = replace(lock, debs=lock.toolchain)
    checksum = hash_rootfs_inputs(system, target.build.epoch)
    folder = cache_path("compile", "systems", checksum[:24])
    if not folder.is_dir():
        archive = ensure_cached_rootfs_archive(system, checksum, target.build.epoch, store)
        with _draft_directory(folder) as draft:
            _unpack(archive, draft)
    return RootDirAndInterpreter(str(folder), target.python.interpreter)


def host_compiler_cache_suffix_or_empty(lock: Lock) -> str:
    if lock.toolchain:
        return ""
    said = run_command(Command(argv=("/usr/bin/g++", "-v"))) if Path("/usr/bin/g++").exists() else None
    words = f"{said.stderr if said else ''} {os.confstr('CS_GNU_LIBC_VERSION')}"
    return f"-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar, which is known by its sha256, as files of whoever runs this; devices are left out."""
    words = ("--extract", "--no-same-owner", "--exclude=./dev/*", "--file", str(archive), "--directory", str(folder))
    run_command_or_raise(Command(argv=("tar", *words), timeout_s=_INSTALL_S), f"{archive.name} cannot be unpacked")


def _own_python(version: str) -> str:
    if not all(Path("/usr/bin", name).exists() for name in ("g++", "c++")):
        raise MachineError(
            _(
                "this machine has no C++ compiler; the target has a base image, so its packages are "
                "compiled with the compiler of this machine"
            ),
            next_step="apt-get install g++",
        )
    found = run_command(Command(argv=(find_uv_bin(), "python", "find", "--no-python-downloads", version)))
    if not found.ok:
        raise MachineError(
            _(
                "this machine has no Python {version}; the target has a base image, so its packages are "
                "compiled with the Python of this machine"
            ).format(version=version),
            where="python.version",
            next_step=_("install Python {version} with its headers").format(version=version),
        )
    return str(Path(found.stdout.strip()).resolve())  # a virtual environment's packages are not the build's


def ensure_stored_tools_installed_in_cache(target: Target, inputs: CompileInputs, store: ObjectStore) -> Path:
    """Return the folder with what a build imports, its compiler among it; builds of the same tools share it.

    Raises WorkFailed: one of the tools is no wheel.
    """
    if sources := [package.file for package in inputs.tools if not package.is_wheel]:
        raise WorkFailed(
            _("the imports of a build must be wheels: {sources}").format(sources=", ".join(sources)),
            where="stack.compile.needs",
        )
    pins = format_requirements(inputs.tools)
    mark = hashlib.sha256(f"{target.python.version} {target.python.platform}\n{pins}".encode()).hexdigest()
    folder = cache_path("compile", "tools", mark[:24])
    if not folder.is_dir():
        with _draft_directory(folder) as draft:
            _install(target, inputs.tools, pins, store, draft)
            _link_libraries(draft)
    return folder


def _install(target: Target, tools: Iterable[Package], pins: str, store: ObjectStore, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="rlbox-compile-") as wheels:
        for package in tools:
            os.symlink(store.path(package.sha256), Path(wheels, package.file))
        Path(wheels, "tools.txt").write_text(pins, "utf-8")
        python = ("--python-version", target.python.version, "--python-platform", target.python.platform)
        words = ("--no-deps", "--require-hashes", "--no-index", "--offline", "--find-links", wheels)
        install = (find_uv_bin(), "pip", "install", "--quiet", *python, *words, "--target", str(folder))
        command = Command(argv=(*install, "--requirement", f"{wheels}/tools.txt"), timeout_s=_INSTALL_S)
        run_command_or_raise(command, "what the build imports cannot be unpacked")


def _link_libraries(site: Path) -> None:
    """Give the CUDA libraries the names by which a linker looks for them: their wheels leave these out."""
    for path in sorted(site.glob("nvidia/*/lib/lib*.so.*")):
        name = path.with_name(f"{path.name.partition('.so.')[0]}.so")
        if not name.exists():
            os.symlink(path.name, name)


def recreate_wheel_build_dir(
    directory: Path, root_with_compilers_to_wrap: str, entry: Compile, inputs: CompileInputs, store: ObjectStore
) -> None:
    """Lay a build's own folder anew: the source as its archive has it, the system's compilers behind `launch.sh`."""
    if directory.exists():
        remove_tree(directory)
    for name in ("bin", "home", "objects", "out", "site", "tmp", "unpacked", "view"):
        (directory / name).mkdir(parents=True)
    shutil.copy(PROGRAMS_DIR / "launch.sh", directory / "launch.sh")
    shutil.copy(PROGRAMS_DIR / "build_wheel.py", directory / "build_wheel.py")
    (directory / "launch.sh").chmod(0o755)
    for name in (
        "nvcc",
        *(name for name in WRAPPED_COMPILERS if os.path.lexists(f"{root_with_compilers_to_wrap}/usr/bin/{name}")),
    ):
        os.symlink("../launch.sh", directory / "bin" / name)
    write_atomic(directory / "units", "".join(f"{pattern}\n" for pattern in entry.units))
    write_atomic(directory / "units.log", "")
    _unpack(store.path(inputs.source.sha256), directory / "unpacked")
    _take_source(directory, entry, inputs)


def _take_source(folder: Path, entry: Compile, compiled: CompileInputs) -> None:
    """Put the source at its path: an archive of the index has one folder at its top, a git tree none."""
    unpacked = folder / "unpacked"
    tops = list(unpacked.iterdir())
    top = unpacked if isinstance(compiled.source, GitTree) or len(tops) != 1 else tops[0]
    os.rename(top, folder / "source")
    source = folder / "source" / entry.folder
    if not (source / "pyproject.toml").is_file() and not (source / "setup.py").is_file():
        raise WorkFailed(
            _("the source of {entry} has neither pyproject.toml nor setup.py").format(entry=entry.name),
            where=entry.folder or "its top folder",
            next_step=_("name the folder that has one: folder of {entry} in [[stack.compile]]").format(
                entry=entry.name
            ),
        )


def create_cache_and_remove_partials(object_cache_dir: Path) -> None:
    object_cache_dir.mkdir(parents=True, exist_ok=True)
    for left in object_cache_dir.glob("*.[0-9]*"):  # a copy that a killed compiler left
        left.unlink()


@contextmanager
def _draft_directory(directory: Path) -> Iterator[Path]:
    draft = directory.with_name(f"{directory.name}.draft")
    if draft.exists():
        remove_tree(draft)
    draft.mkdir(parents=True)
    yield draft
    os.rename(draft, directory)


# What the end of a log says of the cause, the first that matches; {found} is what the pattern's group has.
_FAILURES = (
    (
        re.compile(
            r"Killed signal terminated program|^Killed$|: Killed$|virtual memory exhausted|Cannot allocate memory", re.M
        ),
        "the kernel ended a compiler of {name}: there was not enough memory",
        "raise memory_gib of {name} (now {memory_gib:g}): fewer run at a time then; what is made is kept",
    ),
    (
        re.compile(
            r"nvcc: (?:command )?not found|CUDA_HOME environment variable is not set"
            r"|No such file or directory: '[^']*nvcc'|Failed to find nvcc|No CMAKE_CUDA_COMPILER could be found"
        ),
        "the build of {name} wants a CUDA compiler, and there is none",
        'set cuda = "13.0" (that of the stack\'s torch) for {name} in [[stack.compile]]',
    ),
    (
        re.compile(r"fatal error: '?([^\s':]+)'?(?:: No such file or directory| file not found)"),
        "a compiler of {name} did not find the header {found}",
        "add the Python package that has {found} to needs of {name}, or its apt package to packages",
    ),
    (
        re.compile(r"ModuleNotFoundError: No module named '([A-Za-z0-9_.]+)'"),
        "the build of {name} imports {found}, which is not there",
        "add what brings {found} to its needs",
    ),
    (
        re.compile(
            r"Temporary failure in name resolution|Name or service not known|Network is unreachable"
            r"|Could not resolve host|nodename nor servname|NewConnectionError|failed to lookup address"
            r"|No address associated with hostname"
        ),
        "the build of {name} wants the network, which it does not have: all it is made from is in the lock",
        "find a setting of its build that downloads nothing (env), or put what it downloads into needs or packages",
    ),
)


def create_wheel_build_error_from_log(entry: Compile, code: int, log_path: Path) -> WorkFailed:
    log = read_tail_lines_or_empty(log_path, _TAIL_BYTES).decode("utf-8", "replace")
    reason = _("{entry} cannot be compiled (exit code {code})").format(entry=entry.name, code=code)
    next_step = _("read its log; compiled packages are kept, and the same command continues")
    for pattern, found_reason, found_step in _FAILURES:
        if match := pattern.search(log):
            found = match[1] if pattern.groups else ""
            values = {"name": entry.name, "memory_gib": entry.memory_gib, "found": found}
            reason, next_step = found_reason.format(**values), found_step.format(**values)
            break
    tail = "".join(f"\n  | {line}" for line in log.strip().splitlines()[-_TAIL_LINES:])
    return WorkFailed(f"{reason}{tail}", where=str(log_path), next_step=next_step)


_POLL_S = 0.5
_TAIL_BYTES = 65_536
_TAIL_LINES = 15


def can_use_user_namespace_or_raise_if_none() -> bool:
    """Return whether namespaces need a user namespace around them, which whoever has no privilege can make.

    Raises MachineError: this machine gives none, so that a build could reach the network.
    """
    said = ""
    for mapped in (True, False):
        user = ("--user", "--map-root-user") if mapped else ()
        tried = run_command(
            Command(argv=("unshare", *user, "--mount", "--pid", "--fork", "--net", "true"), timeout_s=60)
        )
        if tried.ok:
            return mapped
        said = said or tried.stderr.strip()
    raise MachineError(
        _("this machine does not allow namespaces for a build, so the build cannot run without network: {said}").format(
            said=said
        ),
        next_step=_(
            "compile on one that does (a virtual machine, a container with --privileged) and bring the "
            "wheel by rlbox fetch TARGET --export"
        ),
    )


def build_wheel_in_namespaces(
    app: App, target: Target, entry: Compile, dirs: BuildDirs, interpreter_path: str, jobs: int, log_path: Path
) -> Path:
    """Build the wheel of the source in the box and return it; what its compilers made stays, whatever becomes of it.

    Raises WorkFailed: the build failed; why, as far as its last lines tell, and these.
    """
    box = Path(dirs.build_dir)
    source = box / "source" / entry.folder / "pyproject.toml"
    backend = parse_build_backend_or_setuptools_and_path(
        parse_untrusted_toml(source.read_text("utf-8")) if source.is_file() else {}
    )
    libraries = sorted(path.parent.name for path in Path(dirs.site_dir).glob("nvidia/*/include"))
    command = _plan_wheel_build_command(
        dirs,
        interpreter_path,
        backend,
        plan_isolated_build_environment(target, entry, jobs, libraries),
        source_subdir=entry.folder,
        create_user_namespace=can_use_user_namespace_or_raise_if_none(),
    )
    with open(log_path, "wb") as out, show_progress(app, in_bytes=False) as show:
        process = start_command(command, stdin=PIPE, stdout=out, stderr=STDOUT)
        try:
            code = _follow(process, box / "units.log", show)
        finally:
            if process.stdin:
                process.stdin.close()  # ends whatever of it still runs
            process.wait()
    if code:
        raise create_wheel_build_error_from_log(entry, code, log_path)
    if entry.units and not (box / "linked").exists():
        raise WorkFailed(
            _(
                "the library of {entry} was linked by a linker that rlbox does not intercept, so symbols of "
                "the units left out are undefined in it"
            ).format(entry=entry.name),
            where=str(log_path),
            next_step=_(
                "compile all of it (no units of {entry} in [[stack.compile]]), or have its build link with c++"
            ).format(entry=entry.name),
        )
    wheels = sorted((box / "out").glob("*.whl"))
    if len(wheels) != 1:
        raise WorkFailed(
            _("the build of {entry} left {count} wheels").format(entry=entry.name, count=len(wheels)),
            where=str(box / "out"),
        )
    return wheels[0]


def _follow(process: ProcessHandle, unit_log: Path, show: Callable[[ProgressItem], None]) -> int:
    shown = 0
    while True:
        code = process.poll()
        lines = unit_log.read_text("utf-8", "replace").split("\n")[:-1]  # the last one may be half written
        for line in lines[shown:]:
            show(_format_unit(line))
        shown = len(lines)
        if code is not None:
            return code
        time.sleep(_POLL_S)


def _format_unit(line: str) -> ProgressItem:
    """Return a line of `units.log` (state, seconds, file) as a line of progress; `launch.sh` writes it."""
    state, seconds, file = line.split("\t", 2)
    mark, status = {
        "begun": ("", ""),
        "made": ("✓", duration_text(int(seconds))),
        "kept": ("=", "from before"),
        "left": ("=", "left out"),
    }[state]
    return ProgressItem(key=file, title=file.rpartition("/")[2], mark=mark, status_text=status)
