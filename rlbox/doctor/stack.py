"""The stack: what its own interpreter can do (torch, Ray, extensions, the linker), and whether its files are whole."""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
import signal
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from packaging.utils import canonicalize_name

from rlbox.amounts import duration_text
from rlbox.doctor.catalogue import make_finding
from rlbox.doctor.fix_checks import INSTALL_DIR_VARIABLE
from rlbox.doctor.program import Program
from rlbox.doctor.requirements import Requirements, override_gpus, override_run_and_disk_limits, parse_requirements
from rlbox.engine.gpu_access import GPUS_VARIABLE
from rlbox.errors import NodeError, TimedOut, WorkFailed
from rlbox.findings import Finding, listed
from rlbox.foreign import whole_number
from rlbox.i18n import _
from rlbox.system.command import run_command
from rlbox.system.json_files import parse_json_lines, read_json_object_or_empty
from rlbox.values import LOCK_IN_IMAGE, OWN, VENV, Command


@dataclass(frozen=True, kw_only=True)
class ProgramFacts:
    """What a program said: its JSON lines, how it ended (None: its time was over), the last line of its errors."""

    steps: tuple[Mapping[str, Any], ...] = ()
    exit_code: int | None = 0
    last_error: str = ""
    seconds: float = 0.0

    def require_step(self, step: str) -> None:
        """Raise `TimedOut` when it was ended before `step`, which is no finding: the machine may be busy."""
        if self.exit_code is None and all(row["step"] != step for row in self.steps):
            raise TimedOut(_("no answer in {seconds}").format(seconds=duration_text(self.seconds)))


def parse_steps(output: str) -> tuple[Mapping[str, Any], ...]:
    """Return the JSON objects among the lines of a program; what libraries print beside them is passed over."""
    return tuple(row for row in parse_json_lines(output.splitlines()) if "step" in row)


def check_torch_and_extensions(facts: ProgramFacts, requirements: Requirements, venv: str) -> Iterator[Finding]:
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


def _check_extensions(facts: ProgramFacts) -> Iterator[Finding]:
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


def check_ray_task(facts: ProgramFacts, venv: str) -> Iterator[Finding]:
    last = facts.steps[-1] if facts.steps else None
    if last is None:
        yield from _check_answer(facts, "ray-task", "Ray", venv)
    elif not last.get("ok"):
        yield make_finding("ray-task", seen=f"{last['step']}: {last.get('error')}", where=f"{venv}/bin/python")


def _check_answer(facts: ProgramFacts, finding_id: str, program: str, venv: str) -> Iterator[Finding]:
    if facts.exit_code is not None:
        text = _("signal {exit_code}") if facts.exit_code < 0 else _("exit code {exit_code}")
        seen = text.format(exit_code=abs(facts.exit_code)) + (f": {facts.last_error}" if facts.last_error else "")
        yield make_finding("no-answer", id=finding_id, seen=seen, where=f"{venv}/bin/python", who=program)


@dataclass(frozen=True, kw_only=True)
class LinkerFacts:
    """How compiling and linking went. `error_by_library` maps a library asked for to the linker's error, empty for
    none.
    """

    compiler: str
    compiler_required: bool = False
    compile_error: str = ""
    error_by_library: Mapping[str, str] = field(default_factory=dict)


_LINK_CAUSES = {"cudart": "lcudart-link", "cuda": "lcuda-link"}


def check_linker(facts: LinkerFacts) -> Iterator[Finding]:
    if not facts.compiler and facts.compiler_required:
        yield make_finding("jit-no-compiler")
    if facts.compile_error:
        yield make_finding("jit-compile", seen=facts.compile_error, where=facts.compiler)
    if failed := {name: error for name, error in facts.error_by_library.items() if error}:
        names = " ".join(f"-l{name}" for name in failed)
        covers = tuple(_LINK_CAUSES[name] for name in failed)
        seen = f"{names}: {next(iter(failed.values()))}"
        yield make_finding("jit-link", seen=seen, where=facts.compiler, covers=covers)


_PROGRAMS_DIR = Path(__file__).resolve().parent / "programs"
_JIT_PACKAGES = ("triton", "flashinfer-python", "sglang", "deepspeed")
# What a shell's settings for a cluster would make of a Ray of one task.
_CLUSTER_VARIABLES = ("RAY_ADDRESS", "RAY_TMPDIR", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_RUNTIME_ENV_HOOK")
_LINK_S = 60.0


class StackProbe:
    """What one examination starts, in a directory of its own.

    `bytecode` is a directory that outlives it, empty for one that does not; None where the packages have their own.
    """

    def __init__(self, environ: Mapping[str, str], python: str, folder: str, bytecode: str | None = "") -> None:
        self._python, self._folder = python, folder
        self._started: list[Program] = []
        # The image has no bytecode: what one program compiles, the next finds.
        cache = {} if bytecode is None else {"PYTHONPYCACHEPREFIX": bytecode or f"{folder}/pyc"}
        self._environ = {**cache, **environ, "PYTHONUNBUFFERED": "1"}
        if not os.access(self._environ.get("HOME") or "/", os.W_OK):
            self._environ["HOME"] = folder

    def run(
        self, script: str, *args: str, monotonic_deadline: float, environ: Mapping[str, str] | None = None
    ) -> ProgramFacts:
        began = time.monotonic()
        argv = [self._python, str(_PROGRAMS_DIR / script), *args]
        try:
            program = Program(argv, self._environ if environ is None else environ, self._folder)
        except OSError as error:
            return ProgramFacts(exit_code=127, last_error=f"{self._python}: {error.strerror}")
        self._started.append(program)
        result = program.read_output_and_kill_all(monotonic_deadline)
        errors = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        return ProgramFacts(
            steps=parse_steps(result.stdout),
            exit_code=result.exit_code,
            last_error=errors[-1][:300] if errors else "",
            seconds=time.monotonic() - began,
        )

    def run_cpu_ray_task(self, monotonic_deadline: float) -> ProgramFacts:
        """Return how a Ray of one core does one task; its files lie below this examination's directory."""
        environ = {name: value for name, value in self._environ.items() if name not in _CLUSTER_VARIABLES}
        environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        return self.run("probe_ray.py", f"{self._folder}/r", monotonic_deadline=monotonic_deadline, environ=environ)

    def kill(self) -> None:
        """End what still runs of all that was started; for one who does not wait for it."""
        for program in tuple(self._started):
            program.kill_with_descendants()

    def probe_linker(self, requirements: Requirements, *, cuda: bool) -> LinkerFacts:
        """Return how a compiler makes and links a small object, against CUDA's libraries where the stack has them."""
        path = self._environ.get("PATH", "")
        compiler = next((file for name in ("cc", "gcc", "clang") if (file := shutil.which(name, path=path))), "")
        required = requirements.has_package(*_JIT_PACKAGES)
        if not compiler:
            return LinkerFacts(compiler="", compiler_required=required)
        source = Path(self._folder, "link.c")
        source.write_text("int main(void) { return 0; }\n", encoding="utf-8")
        error = self._compile(compiler, source, [])
        libraries = ("cudart", "cuda") if cuda and not error else ()
        # The search paths that flashinfer's and torch's JIT compilers give; source: flashinfer jit/cpp_ext.py.
        home = self._environ.get("CUDA_HOME") or "/usr/local/cuda"
        flags = [f"-L{home}/lib64", f"-L{home}/lib64/stubs"]
        return LinkerFacts(
            compiler=compiler,
            compiler_required=required,
            compile_error=error,
            error_by_library={name: self._compile(compiler, source, [*flags, f"-l{name}"]) for name in libraries},
        )

    def _compile(self, compiler: str, source: Path, args: list[str]) -> str:
        """Return the linker's or compiler's complaint, empty when it worked or took too long."""
        argv = (compiler, str(source), "-o", f"{self._folder}/linked", *args)
        try:
            done = run_command(Command(argv=argv, timeout_s=_LINK_S), environ=self._environ)
        except TimedOut:
            return ""
        except WorkFailed as problem:
            return problem.what
        if done.ok:
            return ""
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        telling = [line for line in lines if "cannot find" in line or "error" in line]
        return (telling or lines or [_("exit code {exit_code}").format(exit_code=done.exit_code)])[0]


@dataclass(frozen=True, kw_only=True)
class StackLocation:
    """The interpreter with the stack's packages, what its target requires, and its lock (None: it has none)."""

    python: str
    requirements: Requirements
    lock: Path | None = None


@contextmanager
def open_scratch_dir_stack_probe(
    stack: StackLocation, environ: Mapping[str, str], *, use_data_disk: bool = True
) -> Iterator[StackProbe]:
    """Yield a probe of the stack's interpreter; what it started and wrote is gone when the block ends."""
    bytecode = "" if stack.lock else None
    if stack.lock and use_data_disk:
        bytecode = create_bytecode_dir_removing_others(environ, stack.requirements.data_mount, stack.lock)
    with tempfile.TemporaryDirectory(prefix="rlbox-stack-", ignore_cleanup_errors=True) as directory:
        probe = StackProbe(environ, stack.python, directory, bytecode)
        try:
            yield probe
        finally:
            probe.kill()


def get_install_dir(environ: Mapping[str, str]) -> str:
    """Return the folder of what rlbox has for itself in an image, or laid in the place of this environment."""
    return environ.get(INSTALL_DIR_VARIABLE, OWN)


def load_stack_of_environment(environ: Mapping[str, str]) -> StackLocation:
    """Return the stack of the image, or applied place, that an environment is of; its lock need not be there."""
    install_dir = get_install_dir(environ)
    lock = Path(install_dir, "share/lock.json")
    manifest = read_json_object_or_empty(Path(install_dir, "share/fixes.json"), follow_links=True)
    limited = override_run_and_disk_limits(manifest, environ.get("RLBOX_LIMITS", ""))
    requirements = parse_requirements(limited, read_json_object_or_empty(lock, follow_links=True))
    return StackLocation(
        python=f"{install_dir.removesuffix(OWN)}{VENV}/bin/python",
        requirements=override_gpus(requirements, environ.get(GPUS_VARIABLE, "")),
        lock=lock,
    )


def find_local_stack() -> StackLocation | None:
    """Return the stack of the image, or applied place, that this process is in; None when it is in none."""
    stack = load_stack_of_environment(os.environ)
    return stack if stack.lock and stack.lock.is_file() else None


def find_named_or_local_stack(python: str, next_step: str) -> StackLocation:
    """Return the stack of an interpreter that is named, or the one here.

    Raises
    ------
    NodeError
        No interpreter is named, and no stack is here; or the named one cannot be run.
    """
    if python:
        found = shutil.which(python)
        if found is None:
            raise NodeError(
                _("the interpreter cannot be run"), where=python, next_step=_("name another with --python FILE")
            )
        return StackLocation(python=os.path.abspath(found), requirements=Requirements())
    if here := find_local_stack():
        return here
    raise NodeError(
        _("no stack is here: neither an image of rlbox nor a machine it was applied to"), next_step=next_step
    )


def create_bytecode_dir_removing_others(environ: Mapping[str, str], data_mount: str, lock: Path) -> str:
    """Return a folder of the data disk for what Python compiles, named after the lock; empty when there is none.

    The image holds no bytecode, and compiling takes longer than all else that the stack's programs do here.
    """
    if environ.get("PYTHONPYCACHEPREFIX"):
        return ""
    cache = Path(data_mount, "cache", "doctor")
    try:
        own = cache / hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
        own.mkdir(parents=True, exist_ok=True)
        for other in cache.iterdir():
            if other != own:
                shutil.rmtree(other, ignore_errors=True)
    except OSError:
        return ""
    return str(own)


_MAX_PINS = 4  # how many packages a remedy puts back
# Files that the build writes with the image's own time stamp.
_STAMPED = ("/opt/rlbox/libexec/entrypoint.sh", LOCK_IN_IMAGE)
_HASHED_BYTES = 64 << 20  # a changed file of more is called changed by its time stamp alone


class FileDamage(NamedTuple):
    """A file that is not what it was; `description` says how, with numbers."""

    path: str
    kind: Literal["missing", "truncated", "changed"]
    description: str


def check_packages(venv: str, requirements: Requirements) -> Iterator[Finding]:
    site = f"{venv}/lib/python{requirements.python or '3'}/site-packages"
    target = requirements.target or "TARGET"
    if not os.path.isdir(site):
        yield make_finding("stack-missing", site=site, target=target)
        return
    stamped = (*_STAMPED, f"{venv}/pyvenv.cfg")
    image_times = {int(os.stat(path).st_mtime) for path in stamped if os.path.exists(path)}
    installed: dict[str, list[str]] = {}
    for directory in sorted(name for name in os.listdir(site) if name.endswith(".dist-info")):
        written_name, __, version = directory.removesuffix(".dist-info").rpartition("-")
        name = canonicalize_name(written_name)
        installed.setdefault(name, []).append(version)
        damages = list(_find_damages(site, directory, image_times))
        truncated = [damage for damage in damages if damage.kind == "truncated"]
        if shown := truncated or damages:
            seen = listed([f"{damage.path} {damage.description}" for damage in shown])
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
        yield make_finding("packages-differ", id=finding_id, seen=listed(texts), where=site, pins=pins)


def _find_damages(site: str, directory: str, image_times: set[int]) -> Iterator[FileDamage]:
    """Yield the files of a distribution that are not as its RECORD has them; bytes are read of few."""
    try:
        with open(f"{site}/{directory}/RECORD", newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if len(row) == 3]
    except OSError:
        return
    for name, digest, size_text in rows:
        if (size := whole_number(size_text)) is not None:
            yield from _compare_file(os.path.normpath(f"{site}/{name}"), digest, size, image_times)


def _compare_file(path: str, digest: str, size: int, image_times: set[int]) -> Iterator[FileDamage]:
    try:
        status = os.stat(path)
    except OSError:
        yield FileDamage(path, "missing", _("is missing"))
        return
    is_library = path.endswith(".so") or ".so." in path
    if is_library and status.st_size != size:
        kind: Literal["truncated", "changed"] = "truncated" if status.st_size < size else "changed"
        description = _("has {st_size} bytes of {size}").format(st_size=status.st_size, size=size)
        yield FileDamage(path, kind, description)
        return
    # What has the image's own time was written by the build, a patch too.
    is_hashed = int(status.st_mtime) not in image_times and size <= _HASHED_BYTES and digest.startswith("sha256=")
    if is_hashed and _hash_file(path) != digest.removeprefix("sha256="):
        yield FileDamage(path, "changed", _("was changed after the image was built"))


def _hash_file(path: str) -> str:
    with open(path, "rb") as file:
        return urlsafe_b64encode(hashlib.sha256(file.read()).digest()).rstrip(b"=").decode()
