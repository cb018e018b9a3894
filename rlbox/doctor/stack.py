"""The stack: what its own interpreter can do (torch, Ray, extensions, the linker), and whether its files are whole."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from packaging.utils import canonicalize_name

from rlbox.amounts import duration_text
from rlbox.doctor.catalogue import make_finding
from rlbox.doctor.fix_checks import INSTALL_DIR_VARIABLE
from rlbox.doctor.program import RunningProgram
from rlbox.doctor.requirements import (
    Requirements,
    override_gpus_unless_all,
    override_limits_if_valid_json,
    parse_or_default,
)
from rlbox.engine.gpu_access import GPUS_VARIABLE
from rlbox.errors import MachineError, TimedOut, WorkFailed
from rlbox.findings import Finding, join_and_count_rest
from rlbox.foreign import parse_digits
from rlbox.i18n import _
from rlbox.system.command import run_command
from rlbox.system.json_files import parse_valid_json_objects, read_json_object_or_empty
from rlbox.values import OWN, VENV, Command


@dataclass(frozen=True, kw_only=True)
class ProbeProgramResult:
    """What a program said: its JSON lines, how it ended (None: its time was over), the last line of its errors."""

    steps: tuple[Mapping[str, Any], ...] = ()
    exit_code: int | None = 0
    last_error: str = ""
    seconds: float = 0.0

    def raise_if_timed_out_before(self, step: str) -> None:
        """Raise `TimedOut` when it was ended before `step`, which is no finding: the machine may be busy."""
        if self.exit_code is None and all(row["step"] != step for row in self.steps):
            raise TimedOut(_("no answer in {seconds}").format(seconds=duration_text(self.seconds)))


def _parse_steps(output: str) -> tuple[Mapping[str, Any], ...]:
    """Return the JSON objects among the lines of a program; what libraries print beside them is passed over."""
    return tuple(row for row in parse_valid_json_objects(output.splitlines()) if "step" in row)


def check_torch_and_extensions(facts: ProbeProgramResult, requirements: Requirements, venv: str) -> Iterator[Finding]:
    failed = [row for row in facts.steps if row["step"] in ("import", "cpu") and not row.get("ok")]
    if failed:
        yield make_finding(
            "torch-import" if failed[0]["step"] == "import" else "torch-op",
            seen=str(failed[0].get("error")),
            where=f"{venv}/bin/python",
            target=requirements.target or "TARGET",
        )
    elif all(row["step"] != "cpu" for row in facts.steps):
        yield from _check_answer(facts, "torch-op", "torch", venv)
    yield from _check_extensions(facts)


# Names of torch's C++ libraries as the Itanium C++ ABI mangles them: `_ZN` and the length of each name.
_TORCH_SYMBOLS = tuple(f"undefined symbol: _Z{name}" for name in ("N3c10", "NK3c10", "N2at", "NK2at", "N5torch"))
_TRUNCATED_TEXTS = ("file too short", "invalid ELF header", "past end of file", "cannot read file data")


def _check_extensions(facts: ProbeProgramResult) -> Iterator[Finding]:
    # An illegal instruction is a variant for another processor, of which engines ship several; a missing driver has
    # a finding of its own.
    paths_by_reason: dict[str, list[str]] = {}
    for row in facts.steps:
        error = str(row.get("error"))
        if row["step"] != "load" or row.get("ok") or row.get("signal") == signal.SIGILL or "libcuda.so.1" in error:
            continue
        reason = error.removeprefix("OSError: ").removeprefix(f"{row.get('path')}: ")
        if row.get("signal") == signal.SIGBUS:  # a page behind the end of the file
            reason = "file too short"
        ended = _("it ended its process by signal {signal}").format(signal=row.get("signal"))
        paths_by_reason.setdefault(reason or ended, []).append(str(row.get("path")))
    for reason, paths in paths_by_reason.items():
        finding_id = "extension-load"
        if any(text in reason for text in _TRUNCATED_TEXTS):
            finding_id = "file-truncated"
        elif any(text in reason for text in _TORCH_SYMBOLS):
            finding_id = "torch-abi"
        names = ", ".join(path.rpartition("/")[2] for path in paths)
        yield make_finding(finding_id, where=paths[0], names=names, reason=reason)


def check_ray_task(facts: ProbeProgramResult, venv: str) -> Iterator[Finding]:
    last = facts.steps[-1] if facts.steps else None
    if last is None:
        yield from _check_answer(facts, "ray-task", "Ray", venv)
    elif not last.get("ok"):
        yield make_finding("ray-task", seen=f"{last['step']}: {last.get('error')}", where=f"{venv}/bin/python")


def _check_answer(facts: ProbeProgramResult, finding_id: str, program: str, venv: str) -> Iterator[Finding]:
    if facts.exit_code is not None:
        text = _("signal {exit_code}") if facts.exit_code < 0 else _("exit code {exit_code}")
        seen = text.format(exit_code=abs(facts.exit_code)) + (f": {facts.last_error}" if facts.last_error else "")
        yield make_finding("no-answer", id=finding_id, seen=seen, where=f"{venv}/bin/python", who=program)


_PROGRAMS_DIR = Path(__file__).resolve().parent / "programs"
# What a shell's settings for a cluster would make of a Ray of one task.
_CLUSTER_VARIABLES = ("RAY_ADDRESS", "RAY_TMPDIR", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_RUNTIME_ENV_HOOK")
_LINK_S = 60.0


class StackProbe:
    """What one examination starts, in a directory of its own."""

    def __init__(self, environ: Mapping[str, str], python: str, folder: str) -> None:
        self._python, self._folder = python, folder
        self._started: list[RunningProgram] = []
        self._environ = {**environ, "PYTHONUNBUFFERED": "1"}
        if not os.access(self._environ.get("HOME") or "/", os.W_OK):
            self._environ["HOME"] = folder

    def run(
        self, script: str, *args: str, monotonic_deadline: float, environ: Mapping[str, str] | None = None
    ) -> ProbeProgramResult:
        began = time.monotonic()
        argv = [self._python, str(_PROGRAMS_DIR / script), *args]
        try:
            program = RunningProgram(argv, self._environ if environ is None else environ, self._folder)
        except OSError as error:
            return ProbeProgramResult(exit_code=127, last_error=f"{self._python}: {error.strerror}")
        self._started.append(program)
        result = program.read_output_and_kill_all(monotonic_deadline)
        errors = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        return ProbeProgramResult(
            steps=_parse_steps(result.stdout),
            exit_code=result.exit_code,
            last_error=errors[-1][:300] if errors else "",
            seconds=time.monotonic() - began,
        )

    def run_cpu_ray_task(self, monotonic_deadline: float) -> ProbeProgramResult:
        environ = {name: value for name, value in self._environ.items() if name not in _CLUSTER_VARIABLES}
        environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        return self.run("probe_ray.py", f"{self._folder}/r", monotonic_deadline=monotonic_deadline, environ=environ)

    def kill_started_programs(self) -> None:
        for program in tuple(self._started):
            program.kill_with_descendants()

    def find_compiler_on_path(self) -> str | None:
        path = self._environ.get("PATH", "")
        return next((file for name in ("cc", "gcc", "clang") if (file := shutil.which(name, path=path))), None)

    def link_and_find_error(self, compiler: str, library: str | None = None) -> str | None:
        """Return the complaint about a program of one line that is linked; None when it worked or took too long."""
        source = Path(self._folder, "link.c")
        source.write_text("int main(void) { return 0; }\n", encoding="utf-8")
        # The search paths that flashinfer's and torch's JIT compilers give; source: flashinfer jit/cpp_ext.py.
        home = self._environ.get("CUDA_HOME") or "/usr/local/cuda"
        flags = (f"-L{home}/lib64", f"-L{home}/lib64/stubs", f"-l{library}") if library else ()
        argv = (compiler, str(source), "-o", f"{self._folder}/linked", *flags)
        try:
            done = run_command(Command(argv=argv, timeout_s=_LINK_S), base_env=self._environ)
        except TimedOut:
            return None
        except WorkFailed as problem:
            return problem.what
        if done.ok:
            return None
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        telling = [line for line in lines if "cannot find" in line or "error" in line]
        return (telling or lines or [_("exit code {exit_code}").format(exit_code=done.exit_code)])[0]


_LINK_CAUSES = {"cudart": "lcudart-link", "cuda": "lcuda-link"}
_JIT_PACKAGES = ("triton", "flashinfer-python", "sglang", "deepspeed")
_CUDA_RUNTIMES = ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13")


def requires_cuda(requirements: Requirements) -> bool:
    return requirements.wants_gpu or requirements.has_any_package(*_CUDA_RUNTIMES)


def find_jit_compile_or_link_failures(
    stack: StackProbe, requirements: Requirements, libraries: Sequence[Literal["cudart", "cuda"]]
) -> Iterator[Finding]:
    compiler = stack.find_compiler_on_path()
    if compiler is None:
        if requirements.has_any_package(*_JIT_PACKAGES):
            yield make_finding("jit-no-compiler")
    elif error := stack.link_and_find_error(compiler):
        yield make_finding("jit-compile", seen=error, where=compiler)
    elif errors := {name: error for name in libraries if (error := stack.link_and_find_error(compiler, name))}:
        seen = f"{' '.join(f'-l{name}' for name in errors)}: {next(iter(errors.values()))}"
        covers = tuple(_LINK_CAUSES[name] for name in errors)
        yield make_finding("jit-link", seen=seen, where=compiler, covers=covers)


@dataclass(frozen=True, kw_only=True)
class StackPythonAndRequirements:
    """The interpreter with the stack's packages, what its target requires, and its lock (None: it has none)."""

    python: str
    requirements: Requirements
    lock: Path | None = None


@contextmanager
def open_scratch_dir_stack_probe(stack: StackPythonAndRequirements, environ: Mapping[str, str]) -> Iterator[StackProbe]:
    """Yield a probe of the stack's interpreter; what it started and wrote is gone when the block ends."""
    with tempfile.TemporaryDirectory(prefix="rlbox-stack-", ignore_cleanup_errors=True) as directory:
        # The image has no bytecode: what one program compiles, the next finds.
        cache = {"PYTHONPYCACHEPREFIX": f"{directory}/pyc"} if stack.lock else {}
        probe = StackProbe({**cache, **environ}, stack.python, directory)
        try:
            yield probe
        finally:
            probe.kill_started_programs()


def get_rlbox_files_dir(environ: Mapping[str, str]) -> str:
    """Return the folder of what rlbox has for itself in an image, or laid in the place of this environment."""
    return environ.get(INSTALL_DIR_VARIABLE, OWN)


def load_environ_stack_or_default(environ: Mapping[str, str]) -> StackPythonAndRequirements:
    """Return the stack of the image, or applied place, that an environment is of; its lock need not be there."""
    install_dir = get_rlbox_files_dir(environ)
    lock = Path(install_dir, "share/lock.json")
    manifest = read_json_object_or_empty(Path(install_dir, "share/fixes.json"), follow_links=True)
    limited = override_limits_if_valid_json(manifest, environ.get("RLBOX_LIMITS", ""))
    requirements = parse_or_default(limited, read_json_object_or_empty(lock, follow_links=True))
    return StackPythonAndRequirements(
        python=f"{install_dir.removesuffix(OWN)}{VENV}/bin/python",
        requirements=override_gpus_unless_all(requirements, environ.get(GPUS_VARIABLE, "")),
        lock=lock,
    )


def find_local_stack() -> StackPythonAndRequirements | None:
    """Return the stack of the image, or applied place, that this process is in; None when it is in none."""
    stack = load_environ_stack_or_default(os.environ)
    return stack if stack.lock and stack.lock.is_file() else None


def require_named_or_local_stack(python: str, next_step: str) -> StackPythonAndRequirements:
    """Return the stack of an interpreter that is named, or the one here; raises `MachineError` where there is none."""
    if python:
        found = shutil.which(python)
        if found is None:
            raise MachineError(
                _("the interpreter cannot be run"), where=python, next_step=_("name another with --python FILE")
            )
        return StackPythonAndRequirements(python=os.path.abspath(found), requirements=Requirements())
    if here := find_local_stack():
        return here
    raise MachineError(
        _("no stack is here: neither an image of rlbox nor a machine it was applied to"), next_step=next_step
    )


_MAX_PINS = 4  # how many packages a remedy puts back


class _FileDamage(NamedTuple):
    """A file that is not what it was; `description` says how, with numbers."""

    path: str
    kind: Literal["missing", "truncated", "changed"]
    description: str


def check_package_files_and_versions(venv: str, requirements: Requirements) -> Iterator[Finding]:
    site = f"{venv}/lib/python{requirements.python or '3'}/site-packages"
    target = requirements.target or "TARGET"
    if not os.path.isdir(site):
        yield make_finding("stack-missing", site=site, target=target)
        return
    installed: dict[str, list[str]] = {}
    for directory in sorted(name for name in os.listdir(site) if name.endswith(".dist-info")):
        written_name, __, version = directory.removesuffix(".dist-info").rpartition("-")
        name = canonicalize_name(written_name)
        installed.setdefault(name, []).append(version)
        damages = list(_find_damages(site, directory))
        truncated = [damage for damage in damages if damage.kind == "truncated"]
        if shown := truncated or damages:
            seen = join_and_count_rest([f"{damage.path} {damage.description}" for damage in shown])
            finding_id, where = f"file-{shown[0].kind}", damages[0].path
            yield make_finding("files-damaged", id=finding_id, seen=seen, where=where, package=name, target=target)
    wrong = {name: version for name, version in requirements.packages.items() if installed.get(name) != [version]}
    if wrong:
        texts = [
            _("{name} {there} (locked: {version})").format(
                name=name, there=" and ".join(sorted(installed.get(name, ()))) or _("is gone"), version=version
            )
            for name, version in sorted(wrong.items())
        ]
        pins = " ".join(f"{name}=={version}" for name, version in sorted(wrong.items())[:_MAX_PINS])
        finding_id = "package-overwritten" if wrong.keys() & installed.keys() else "package-missing"
        yield make_finding("packages-differ", id=finding_id, seen=join_and_count_rest(texts), where=site, pins=pins)


def _find_damages(site: str, directory: str) -> Iterator[_FileDamage]:
    """Yield the files of a distribution that are missing, and libraries of another size than its RECORD has."""
    try:
        with open(f"{site}/{directory}/RECORD", newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if len(row) == 3]
    except OSError:
        return
    for name, __, size_text in rows:
        path, size = os.path.normpath(f"{site}/{name}"), parse_digits(size_text)
        if size is None:
            continue
        try:
            actual = os.stat(path).st_size
        except OSError:
            yield _FileDamage(path, "missing", _("is missing"))
            continue
        if actual != size and (path.endswith(".so") or ".so." in path):
            description = _("has {st_size} bytes of {size}").format(st_size=actual, size=size)
            yield _FileDamage(path, "truncated" if actual < size else "changed", description)
