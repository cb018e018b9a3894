"""Self-test of a stack: programs that load one component each, in a process of its own, by the stack's interpreter."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from rlbox.amounts import duration_text
from rlbox.config.schema import SingleLine, SpecModel, validate_spec
from rlbox.doctor.gpus import GpuFacts, check_all_reduce, check_gpu_kernels, check_gpus, probe_gpus
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.stack import (
    MANUAL_LOAD,
    LinkerFacts,
    ProgramFacts,
    StackLocation,
    StackProbe,
    check_linker,
    check_ray,
    check_torch,
    format_wait_command,
    make_bytecode_directory,
)
from rlbox.errors import NodeError
from rlbox.findings import Finding
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.gpu import probe_driver

ComponentState = Literal["ok", "failed", "late", "no-gpu", "absent"]
NO_GPU = "no GPU here"
ABSENT = "not in this stack"
_DRIVER = "libcuda.so.1"
_NO_IMAGE = "no kernel image is available"
_ON_GPU = "import torch; torch.ones(1).cuda()"
_START = f"import ctypes; ctypes.CDLL('{_DRIVER}').cuInit(0)"

TABLE = Path(__file__).with_name("components.toml")
ImportPath = Annotated[str, StringConstraints(pattern=r"^\w+(\.\w+)*(:\w+)?$")]


class Component(SpecModel):
    """A package, or git tree, of a stack."""

    name: SingleLine
    package: str = Field("", description="its canonical name in a lock; empty for one that is no package")
    also: tuple[SingleLine, ...] = Field((), description="packages that have the same modules")
    imports: tuple[ImportPath, ...] = Field(min_length=1, description="MODULE or MODULE:ATTRIBUTE, imported in turn")
    kernel: str = Field("", description="lines of Python with torch that run a first kernel of its own")

    @property
    def module(self) -> str:
        """The module by which it is found."""
        return self.imports[0].partition(":")[0]

    @property
    def packages(self) -> tuple[str, ...]:
        """The names that it can have in a lock."""
        return (self.package, *self.also) if self.package else self.also


class Components(SpecModel):
    part: tuple[Component, ...]


@cache
def load_components() -> tuple[Component, ...]:
    from rlbox.config.toml_files import load_toml

    return validate_spec(Components, load_toml(TABLE), str(TABLE)).part


@dataclass(frozen=True, kw_only=True)
class ComponentResult:
    """One part of a stack.

    `late`: a busy machine did not come to its end; `no-gpu`: it cannot be tested without one; `absent`: the stack has
    no such part.
    """

    name: str
    state: ComponentState
    detail: str = ""
    next_step: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        row = asdict(self)
        return {**row, "next": row.pop("next_step"), "seconds": round(self.seconds, 2)}


@dataclass(frozen=True, kw_only=True)
class StackContext:
    """Where the parts are tested.

    `packages` maps canonical names to versions, as installed; `modules` are those of the table that can be found;
    `devices` counts the GPUs whose device files are here.
    """

    python: str
    version: str
    packages: Mapping[str, str]
    modules: frozenset[str]
    devices: int
    demands: Requirements

    @property
    def cuda(self) -> bool:
        """Whether the stack has CUDA's libraries, or is made for GPUs."""
        names = ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13")
        return self.demands.wants_gpu or any(name in self.packages for name in names)

    def locked(self, names: Sequence[str]) -> str:
        """Return the first of `names` that the lock has; empty when it has none."""
        return next((name for name in names if name in self.demands.packages), "")


def make_failed_result(name: str, findings: Iterable[Finding], seconds: float = 0.0) -> ComponentResult | None:
    """Return a failed part for the first error among `findings`; None when there is none."""
    error = next((row for row in findings if row.level == "error"), None)
    if error is None:
        return None
    detail = f"{error.title}: {error.seen}" if error.seen else error.title
    detail += f" ({error.where})" if error.where.startswith("/") and error.where not in detail else ""
    return ComponentResult(name=name, state="failed", detail=detail, next_step=error.remedy, seconds=seconds)


def make_ok_result(name: str, detail: str, seconds: float = 0.0) -> ComponentResult:
    return ComponentResult(name=name, state="ok", detail=detail, seconds=seconds)


def make_timeout_result(
    name: str, facts: ProgramFacts, ground: StackContext, code: str = "import torch"
) -> ComponentResult | None:
    """Return a part whose program did not end: failed where it only waited, late where the machine was busy.

    `code` does the same by hand.
    """
    if facts.exit_code is not None:
        return None
    late = f"no answer in {duration_text(facts.seconds)}"
    if facts.was_idle:
        detail, remedy = f"{late}: it waits for something that does not come", format_wait_command(ground.python, code)
        return ComponentResult(name=name, state="failed", detail=detail, next_step=remedy, seconds=facts.seconds)
    detail, remedy = f"{late}: the machine was busy", "once more: what was compiled is kept; or a larger --timeout"
    return ComponentResult(name=name, state="late", detail=detail, next_step=remedy, seconds=facts.seconds)


def report_torch(facts: ProgramFacts, ground: StackContext) -> Iterator[ComponentResult]:
    """Yield torch on the CPU, torch on every GPU, and Triton's compiler."""
    steps = {str(row["step"]): row for row in facts.steps}
    findings = list(check_torch(facts, ground.demands, ground.python.removesuffix("/bin/python")))
    late = None if "cpu" in steps else make_timeout_result("torch", facts, ground)
    done = f"{steps.get('import', {}).get('version', '')}, multiplies on the CPU"
    yield late or make_failed_result("torch", findings, facts.seconds) or make_ok_result("torch", done, facts.seconds)
    if not steps.get("import", {}).get("ok"):
        return
    yield _torch_on_gpus(facts, ground, str(steps["import"].get("cuda", "")))
    yield _triton(facts, ground, steps)


def _torch_on_gpus(facts: ProgramFacts, ground: StackContext, cuda: str) -> ComponentResult:
    name = "torch on GPUs"
    if not cuda:
        return ComponentResult(name=name, state="absent", detail="this torch is built for the CPU")
    if not ground.devices:
        return ComponentResult(name=name, state="no-gpu", detail=NO_GPU)
    rows = [row for row in facts.steps if row["step"] == "gpu" and row.get("ok")]
    kernels = [row for row in check_gpu_kernels(facts, ground.demands) if row.id != "jit-triton"]
    wrong = [row for row in facts.steps if row["step"] == "gpu" and not row.get("ok")]
    if wrong and not kernels:
        kernels = [
            Finding(id="gpu-kernel", title=_("torch cannot calculate on a GPU"), seen=str(wrong[0].get("error")))
        ]
    if not rows and not kernels:
        kernels = [Finding(id="gpu-kernel", title=_("torch said nothing of the GPUs"), seen=facts.last_error)]
    models = ", ".join(sorted({f"{row['name']} {row['arch']}" for row in rows}))
    detail = f"multiplies on {len(rows)} x {models}, CUDA {cuda}"
    return (
        make_timeout_result(name, facts, ground, _ON_GPU)
        or make_failed_result(name, kernels)
        or make_ok_result(name, detail)
    )


def _triton(facts: ProgramFacts, ground: StackContext, steps: Mapping[str, Mapping[str, Any]]) -> ComponentResult:
    name = "Triton JIT"
    if "triton" not in ground.packages:
        return ComponentResult(name=name, state="absent", detail=ABSENT)
    if not ground.devices:
        return _triton_compiles(name, steps.get("triton-compile"))
    broken = [row for row in check_gpu_kernels(facts, ground.demands) if row.id == "jit-triton"]
    if "triton" not in steps and not broken:
        broken = [Finding(id="jit-triton", title=_("Triton was not reached"), seen=_("see torch on GPUs"))]
    done = f"{ground.packages['triton']}, compiles and runs a kernel"
    return (
        make_timeout_result(name, facts, ground, _ON_GPU)
        or make_failed_result(name, broken)
        or make_ok_result(name, done)
    )


def _triton_compiles(name: str, said: Mapping[str, Any] | None) -> ComponentResult:
    """Return what Triton can show without a GPU: a kernel in machine code."""
    if said is None:
        return ComponentResult(name=name, state="no-gpu", detail=NO_GPU)
    if said.get("ok"):
        return make_ok_result(name, f"compiles a kernel for {said['arch']}; not run: {NO_GPU}")
    remedy = "the error names what it misses; TRITON_CACHE_DIR must be writable"
    return ComponentResult(
        name=name, state="failed", detail=f"Triton cannot compile: {said.get('error')}", next_step=remedy
    )


def report_driver(facts: GpuFacts, ground: StackContext) -> ComponentResult:
    """Return whether the driver starts, and what it shows."""
    name = "CUDA driver"
    said = next((row for row in facts.cuda.steps if row["step"] == "driver"), {})
    missing = int(said.get("code", -1)) == -1
    if missing and not ground.devices:
        return ComponentResult(name=name, state="no-gpu", detail=NO_GPU)
    number = int(said.get("cuda", 0))
    detail = f"{said.get('count')} GPUs, CUDA {number // 1000}.{number % 1000 // 10}, {said.get('library')}"
    broken = make_failed_result(name, check_gpus(facts, ground.demands), facts.cuda.seconds)
    return (
        make_timeout_result(name, facts.cuda, ground, _START)
        or broken
        or make_ok_result(name, detail, facts.cuda.seconds)
    )


def report_nccl(facts: ProgramFacts, count: int, ground: StackContext) -> ComponentResult:
    """Return whether `count` GPUs add up a tensor."""
    done = make_ok_result("NCCL", f"{count} processes added up a tensor", facts.seconds)
    broken = make_failed_result("NCCL", check_all_reduce(facts, count), facts.seconds)
    if not broken and facts.exit_code not in (0, None):
        broken = ComponentResult(name="NCCL", state="failed", detail=facts.last_error, seconds=facts.seconds)
    return broken or make_timeout_result("NCCL", facts, ground, _ON_GPU) or done


def report_ray(facts: ProgramFacts, ground: StackContext) -> ComponentResult:
    findings = check_ray(facts, ground.demands, ground.python.removesuffix("/bin/python"))
    done = f"{ground.packages.get('ray', '')}, one node did one task"
    broken = make_failed_result("Ray", findings, facts.seconds)
    return (
        make_timeout_result("Ray", facts, ground, MANUAL_LOAD["Ray"])
        or broken
        or make_ok_result("Ray", done, facts.seconds)
    )


def report_links(facts: LinkerFacts, ground: StackContext) -> Iterator[ComponentResult]:
    """Yield the C compiler, and CUDA's libraries as a JIT compiler links them."""
    if not facts.compiler:
        broken = make_failed_result("C compiler", check_linker(facts))
        yield broken or ComponentResult(name="C compiler", state="absent", detail=ABSENT)
        return
    broken = make_failed_result("C compiler", check_linker(LinkerFacts(compiler=facts.compiler, error=facts.error)))
    yield broken or make_ok_result("C compiler", facts.compiler)
    for library in ("cudart", "cuda"):
        name = f"link -l{library}"
        if library not in facts.error_by_library:
            yield ComponentResult(
                name=name, state="absent", detail="needs a C compiler that works" if broken else ABSENT
            )
            continue
        one = LinkerFacts(compiler=facts.compiler, error_by_library={library: facts.error_by_library[library]})
        wrong = make_failed_result(name, check_linker(one))
        if wrong and library == "cuda" and not ground.devices:
            wrong = ComponentResult(
                name=name, state="no-gpu", detail=f"{NO_GPU}, and no stub of its driver: {wrong.detail}"
            )
        yield wrong or make_ok_result(name, "links")


def report_import(component: Component, facts: ProgramFacts, ground: StackContext) -> ComponentResult:
    last = facts.steps[-1] if facts.steps else {}
    version = next((ground.packages[name] for name in component.packages if name in ground.packages), "")
    if last.get("ok") and last.get("last"):
        imports = ", ".join(component.imports).replace(":", ".")
        detail = f"{version}, imports {imports}" if version else f"imports {imports}"
        if last["step"] == "kernel" and ground.devices:
            detail = f"{version}, imports {imports}, runs a kernel"
        return make_ok_result(component.name, detail, facts.seconds)
    if late := make_timeout_result(component.name, facts, ground, f"import {component.module}"):
        return late
    if last.get("step") == "kernel" and _NO_IMAGE in str(last.get("all", "")):
        return ComponentResult(
            name=component.name, state="failed", seconds=facts.seconds,
            detail=f"{version} has no kernels for this GPU: {last['error']}",
            next_step="take a wheel that was built for it, or build one with TORCH_CUDA_ARCH_LIST",
        )  # fmt: skip
    if not ground.devices and _DRIVER in str(last.get("all", "")):
        return ComponentResult(
            name=component.name, state="no-gpu", detail=f"{NO_GPU}: it needs {_DRIVER}", seconds=facts.seconds
        )
    ended = f"ended by signal {-(facts.exit_code or 0)}" if (facts.exit_code or 0) < 0 else facts.last_error
    error = str(last.get("error") or ended or "ended without a word")
    return ComponentResult(
        name=component.name, state="failed", seconds=facts.seconds,
        detail=f"{version} {error}".strip() + (f" ({last['where']})" if last.get("where") else ""),
        next_step=f"{ground.python} -c 'import {component.module}' shows all of it; compare the versions with the lock",
    )  # fmt: skip


def make_absent_result(component: Component, ground: StackContext) -> ComponentResult:
    """Return a component whose module is not there: a fault where the lock has it."""
    locked = ground.locked(component.packages)
    if not locked:
        return ComponentResult(name=component.name, state="absent", detail=ABSENT)
    return ComponentResult(
        name=component.name, state="failed", detail=f"the lock has {locked}, and {component.module} is not there",
        next_step="start a new container, or bring the machine to its lock again: rlbox apply TARGET",
    )  # fmt: skip


Test = Callable[[], Iterable[ComponentResult]]
_INSTALLED_S = 30.0
_ARCH = "sm_80"  # what Triton compiles for where neither a GPU nor a target says it
_AT_ONCE = 8  # an import of an inference engine takes more than a GiB

_PARQUET = b"PAR1"
_FIRST = 1 << 20


def run_component_checks(
    stack: StackLocation, environ: Mapping[str, str], files: Sequence[Path], timeout_s: float
) -> Iterator[ComponentResult]:
    """Yield the parts of a stack as they are known; all are done `timeout_s` seconds after the first is asked for.

    Raises
    ------
    NodeError
        The interpreter does not say what packages it has.
    """
    end = time.monotonic() + timeout_s
    workers = ThreadPoolExecutor(max(2, min(os.cpu_count() or 1, _AT_ONCE)))
    with open_stack_probe(stack, environ) as probe:
        try:
            ground = _ground(probe, stack, time.monotonic() + _INSTALLED_S)
            yield ComponentResult(
                name="Python", state="ok", detail=f"{ground.version}, {len(ground.packages)} packages"
            )
            yield from map(_file_part, files)
            waiting = [workers.submit(lambda test: tuple(test()), test) for test in _tests(probe, ground, end)]
            for done in as_completed(waiting):
                yield from done.result()
        finally:
            workers.shutdown(wait=False, cancel_futures=True)


@contextmanager
def open_stack_probe(stack: StackLocation, environ: Mapping[str, str]) -> Iterator[StackProbe]:
    """Yield what asks the stack's interpreter; nothing of it is left when the block ends."""
    bytecode = make_bytecode_directory(environ, stack.requirements.data_mount, stack.lock) if stack.lock else None
    with tempfile.TemporaryDirectory(prefix="rlbox-stack-", ignore_cleanup_errors=True) as folder:
        probe = StackProbe(environ, stack.python, folder, f"{os.getpid()}-{time.monotonic_ns()}", bytecode)
        try:
            yield probe
        finally:
            probe.kill()


def _ground(probe: StackProbe, stack: StackLocation, end: float) -> StackContext:
    facts = probe.probe_installed([row.module for row in load_components()], end)
    if not facts.steps:
        why = facts.last_error or _("no answer in {seconds}").format(seconds=duration_text(facts.seconds))
        raise NodeError(
            _("the stack's interpreter does not work: {why}").format(why=why), where=stack.python,
            next_step=_("start a new container, or name another interpreter with --python FILE"),
        )  # fmt: skip
    said = facts.steps[-1]
    return StackContext(
        python=stack.python,
        version=str(said["python"]),
        packages=said["packages"],
        modules=frozenset(said["modules"]),
        devices=probe_driver().device_count,
        demands=stack.requirements,
    )


def _tests(probe: StackProbe, ground: StackContext, end: float) -> Iterator[Test]:
    """Yield the tests: torch and Ray first, since what the frameworks import of them is compiled and read by then."""
    yield lambda: _torch(probe, ground, end)
    yield lambda: [_ray(probe, ground, end)]
    yield lambda: [report_driver(probe_gpus(probe, end), ground)]
    yield lambda: report_links(probe.probe_linker(ground.demands, cuda=ground.cuda), ground)
    table = load_components()
    for component in table:
        if component.module in ground.modules:
            yield partial(_import, probe, ground, end, component)
    yield lambda: [_nccl(probe, ground, end)]
    yield lambda: [make_absent_result(row, ground) for row in table if row.module not in ground.modules]


def _import(probe: StackProbe, ground: StackContext, end: float, component: Component) -> Iterable[ComponentResult]:
    return [report_import(component, probe.probe_imports(component.imports, component.kernel, end), ground)]


def _torch(probe: StackProbe, ground: StackContext, end: float) -> Iterable[ComponentResult]:
    if "torch" not in ground.packages:
        return [make_absent_result(_needed("torch"), ground)]
    return report_torch(probe.probe_torch(tuple, end, ground.demands.arch or _ARCH), ground)


def _ray(probe: StackProbe, ground: StackContext, end: float) -> ComponentResult:
    return (
        report_ray(probe.probe_ray(end), ground)
        if "ray" in ground.packages
        else make_absent_result(_needed("Ray"), ground)
    )


def _nccl(probe: StackProbe, ground: StackContext, end: float) -> ComponentResult:
    if not ground.cuda or "torch" not in ground.packages:
        return ComponentResult(name="NCCL", state="absent", detail=ABSENT)
    if not ground.devices:
        return ComponentResult(name="NCCL", state="no-gpu", detail=NO_GPU)
    count = min(ground.devices, ground.demands.gpus or ground.devices)
    return report_nccl(probe.probe_all_reduce(count, end), count, ground)


def _needed(name: str) -> Component:
    return Component(name=name, package=name.lower(), imports=(name.lower(),))


def _file_part(path: Path) -> ComponentResult:
    what, wrong = check_data_file(path)
    if wrong:
        remedy = "bring the file to this path, or give the one that the job reads"
        return ComponentResult(name="data file", state="failed", detail=f"{path}: {wrong}", next_step=remedy)
    return ComponentResult(name="data file", state="ok", detail=f"{path}: {what}")


def check_data_file(path: Path) -> tuple[str, str]:
    """Return what a file is, in words, and what is wrong with it (empty: nothing).

    Of a Parquet file both ends are read, of JSON Lines the first line, of a folder its names, of others one byte.
    """
    try:
        if path.is_dir():
            names = os.listdir(path)
            return f"a folder of {len(names)}", "" if names else "the folder is empty"
        size = path.stat().st_size
        with open(path, "rb") as file:
            first = file.read(_FIRST)
            if not first:
                return "", "the file is empty"
            match path.suffix:
                case ".parquet":
                    file.seek(-4, os.SEEK_END)
                    whole = first.startswith(_PARQUET) and file.read(4) == _PARQUET
                    return f"Parquet, {size} bytes", "" if whole else "no Parquet file, or one that is cut short"
                case ".jsonl":
                    return f"JSON Lines, {size} bytes", _json_error(first)
    except FileNotFoundError:
        return "", "it is not there"
    except OSError as error:
        return "", str(error.strerror)
    return f"{size} bytes", ""


def _json_error(first: bytes) -> str:
    line, newline, __ = first.partition(b"\n")
    if not newline and len(first) == _FIRST:
        return ""  # a line of more than a MiB is not read whole
    try:
        parse_json(line)
    except ValueError as error:
        return f"its first line is no JSON: {error}"
    return ""


_PART_WORDS = {"ok": "ok", "failed": "failed", "late": "late", "no-gpu": "no GPU", "absent": "absent"}
_PART_WIDTH = 18


def format_result(part: ComponentResult) -> str:
    """Return a part as one line, with the next step below it when it failed."""
    line = f"{_PART_WORDS[part.state]:<7} {part.name:<{_PART_WIDTH}} {part.detail}"
    line += f", {duration_text(part.seconds)}" if part.seconds >= 0.1 else ""
    return f"{line}\n{'':<8}next: {part.next_step}" if part.next_step else line


def format_summary(parts: Sequence[ComponentResult], seconds: float) -> str:
    """Return the line that stands on stderr: `components: 9 ok, 1 failed, 3 want a GPU, 4 absent, 8.2 s`."""
    counts = {state: sum(part.state == state for part in parts) for state in _PART_WORDS}
    said = [f"{counts['ok']} ok"]
    said += [f"{counts['failed']} failed"] if counts["failed"] else []
    said += [f"{counts['late']} not done in time"] if counts["late"] else []
    said += [f"{counts['no-gpu']} not tested: there is no GPU here"] if counts["no-gpu"] else []
    said += [f"{counts['absent']} not in this stack"] if counts["absent"] else []
    return f"components: {', '.join(said)}, {duration_text(seconds)}"


def results_to_json(parts: Sequence[ComponentResult], python: str, seconds: float) -> dict[str, Any]:
    failed, late = ([part.name for part in parts if part.state == state] for state in ("failed", "late"))
    rows = [part.as_json() for part in parts]
    return {"python": python, "seconds": round(seconds, 2), "failed": failed, "late": late, "parts": rows}
