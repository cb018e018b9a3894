"""Self-test of a stack (`rlbox components`): the stack's interpreter uses each component once, in a process each."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from rlbox.amounts import duration_text
from rlbox.config.schema import SingleLine, SpecModel, validate_spec
from rlbox.doctor.gpus import (
    GpuFacts,
    check_all_reduce,
    check_cuda_nvml_gpu_memory,
    check_torch_and_triton_kernels,
    probe_cuda_and_nvml,
)
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.stack import (
    LinkerFacts,
    ProgramFacts,
    StackLocation,
    StackProbe,
    check_linker,
    check_ray_task,
    check_torch_and_extensions,
    open_scratch_dir_stack_probe,
)
from rlbox.errors import NodeError
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.gpu import probe_cuda_driver

NO_GPU = "no GPU here"
NOT_INSTALLED = "not in this stack"
COMPONENTS_FILE = Path(__file__).with_name("components.toml")
_DRIVER = "libcuda.so.1"
_TORCH_CODE = "import torch; torch.ones(2, 2) @ torch.ones(2, 2)"
_RAY_CODE = "import ray; ray.init()"
_GPU_CODE = "import torch; torch.ones(1).cuda()"
_DRIVER_CODE = f"import ctypes; ctypes.CDLL('{_DRIVER}').cuInit(0)"
_CUDA_RUNTIMES = ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13")
_DEFAULT_ARCH = "sm_80"  # what Triton compiles for where neither a GPU nor a target says it
_LIST_TIMEOUT_S = 120.0
_MAX_WORKERS = 8  # an import of an inference engine takes more than a GiB

ComponentState = Literal["ok", "failed", "late", "no-gpu", "absent"]
_LABELS: dict[ComponentState, str] = {
    "ok": "ok", "failed": "failed", "late": "late", "no-gpu": "no GPU", "absent": "absent"
}  # fmt: skip
_COUNTS: dict[ComponentState, str] = {
    "ok": "ok",
    "failed": "failed",
    "late": "not done in time",
    "no-gpu": "not tested: there is no GPU here",
    "absent": "not in this stack",
}
ImportPath = Annotated[str, StringConstraints(pattern=r"^\w+(\.\w+)*(:\w+)?$")]


class Component(SpecModel):
    """A package, or git tree, of a stack."""

    name: SingleLine
    package: str = Field("", description="its canonical name in a lock; empty for one that is no package")
    also: tuple[SingleLine, ...] = Field((), description="packages that have the same modules")
    imports: tuple[ImportPath, ...] = Field(min_length=1, description="MODULE or MODULE:ATTRIBUTE, imported in turn")
    kernel: str = Field("", description="lines of Python with torch that run a first kernel of its own")

    @property
    def first_import_module(self) -> str:
        return self.imports[0].partition(":")[0]

    @property
    def alternative_package_names(self) -> tuple[str, ...]:
        """The names that it can have in a lock."""
        return (self.package, *self.also) if self.package else self.also


class ComponentList(SpecModel):
    part: tuple[Component, ...]


@cache
def load_stack_components() -> tuple[Component, ...]:
    from rlbox.config.toml_files import load_toml

    return validate_spec(ComponentList, load_toml(COMPONENTS_FILE), str(COMPONENTS_FILE)).part


@dataclass(frozen=True, kw_only=True)
class ComponentResult:
    """`late`: a busy machine did not come to its end; `absent`: the stack has no such component."""

    name: str
    state: Literal["ok", "failed", "late", "no-gpu", "absent"]
    detail: str = ""
    next_step: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        row = asdict(self)
        return {**row, "next": row.pop("next_step"), "seconds": round(self.seconds, 2)}


@dataclass(frozen=True, kw_only=True)
class StackInfo:
    """The stack under test: canonical names and versions of its packages, the importable modules of the table.

    `gpu_device_count` counts the GPUs whose device files are here.
    """

    interpreter_path: str
    python_version: str
    packages: Mapping[str, str]
    modules: frozenset[str]
    gpu_device_count: int
    requirements: Requirements

    @property
    def _uses_cuda(self) -> bool:
        return self.requirements.wants_gpu or any(name in self.packages for name in _CUDA_RUNTIMES)

    @property
    def venv_dir(self) -> str:
        return self.interpreter_path.removesuffix("/bin/python")


def _build_component_result(
    name: str, facts: ProgramFacts, stack: StackInfo, findings: Iterable[Finding], detail: str, code: str
) -> ComponentResult:
    """Return a component's result: what its program did not end with, its first error, or `detail`.

    Parameters
    ----------
    code
        Does the same by hand, for a program that was ended.
    """
    if facts.exit_code is None:
        python = f"{shlex.quote(stack.interpreter_path)} -X faulthandler -c {shlex.quote(code)}"
        return ComponentResult(
            name=name, state="late", detail=f"no answer in {duration_text(facts.seconds)}", seconds=facts.seconds,
            # In the foreground, or timeout sends ABRT once more, which ends the interpreter while it writes its stacks.
            next_step=f"a larger --timeout; where it waits shows: timeout --foreground -s ABRT 60 {python}",
        )  # fmt: skip
    error = next((finding for finding in findings if finding.level == "error"), None)
    if error is None:
        return ComponentResult(name=name, state="ok", detail=detail, seconds=facts.seconds)
    seen = f"{error.title}: {error.seen}" if error.seen else error.title
    seen += f" ({error.where})" if error.where.startswith("/") and error.where not in seen else ""
    return _failed(name, seen, error.remedy, facts.seconds)


def _failed(name: str, detail: str, next_step: str = "", seconds: float = 0.0) -> ComponentResult:
    return ComponentResult(name=name, state="failed", detail=detail, next_step=next_step, seconds=seconds)


def report_torch_and_triton(facts: ProgramFacts, stack: StackInfo) -> Iterator[ComponentResult]:
    """Yield torch on the CPU, torch on every GPU, and Triton's compiler."""
    steps = {str(step["step"]): step for step in facts.steps}
    findings = list(check_torch_and_extensions(facts, stack.requirements, stack.venv_dir))
    cpu = replace(facts, exit_code=0) if "cpu" in steps else facts  # what came too late is on GPUs then
    version = steps.get("import", {}).get("version", "")
    yield _build_component_result("torch", cpu, stack, findings, f"{version}, multiplies on the CPU", _TORCH_CODE)
    if not steps.get("import", {}).get("ok"):
        return
    untimed = replace(facts, seconds=0.0) if facts.exit_code is not None else facts
    yield _report_torch_on_gpus(untimed, stack, str(steps["import"].get("cuda", "")))
    yield _report_triton(untimed, stack, steps)


def _report_torch_on_gpus(facts: ProgramFacts, stack: StackInfo, cuda: str) -> ComponentResult:
    name = "torch on GPUs"
    if not cuda:
        return ComponentResult(name=name, state="absent", detail="this torch is built for the CPU")
    if not stack.gpu_device_count:
        return ComponentResult(name=name, state="no-gpu", detail=NO_GPU)
    gpus = [step for step in facts.steps if step["step"] == "gpu"]
    good, bad = [step for step in gpus if step.get("ok")], [step for step in gpus if not step.get("ok")]
    findings = [
        finding for finding in check_torch_and_triton_kernels(facts, stack.requirements) if finding.id != "jit-triton"
    ]
    if bad and not findings:
        findings = [Finding(id="gpu-kernel", title=_("torch cannot calculate on a GPU"), seen=str(bad[0].get("error")))]
    if not gpus and not findings:
        findings = [Finding(id="gpu-kernel", title=_("torch said nothing of the GPUs"), seen=facts.last_error)]
    models = ", ".join(sorted({f"{step['name']} {step['arch']}" for step in good}))
    return _build_component_result(
        name, facts, stack, findings, f"multiplies on {len(good)} x {models}, CUDA {cuda}", _GPU_CODE
    )


def _report_triton(facts: ProgramFacts, stack: StackInfo, steps: Mapping[str, Mapping[str, Any]]) -> ComponentResult:
    name = "Triton JIT"
    if "triton" not in stack.packages:
        return ComponentResult(name=name, state="absent", detail=NOT_INSTALLED)
    if not stack.gpu_device_count:  # it can still show that it makes machine code
        compiled = steps.get("triton-compile")
        if compiled is None:
            return ComponentResult(name=name, state="no-gpu", detail=NO_GPU)
        if compiled.get("ok"):
            detail = f"compiles a kernel for {compiled['arch']}; not run: {NO_GPU}"
            return ComponentResult(name=name, state="ok", detail=detail)
        next_step = "the error names what it misses; TRITON_CACHE_DIR must be writable"
        return _failed(name, f"Triton cannot compile: {compiled.get('error')}", next_step)
    findings = [
        finding for finding in check_torch_and_triton_kernels(facts, stack.requirements) if finding.id == "jit-triton"
    ]
    if "triton" not in steps and not findings:
        findings = [Finding(id="jit-triton", title=_("Triton was not reached"), seen=_("see torch on GPUs"))]
    detail = f"{stack.packages['triton']}, compiles and runs a kernel"
    return _build_component_result(name, facts, stack, findings, detail, _GPU_CODE)


def report_driver_start(facts: GpuFacts, stack: StackInfo) -> ComponentResult:
    name = "CUDA driver"
    driver = next((step for step in facts.cuda.steps if step["step"] == "driver"), {})
    if int(driver.get("code", -1)) == -1 and not stack.gpu_device_count:
        return ComponentResult(name=name, state="no-gpu", detail=NO_GPU)
    version = int(driver.get("cuda", 0))
    cuda = f"CUDA {version // 1000}.{version % 1000 // 10}"
    detail = f"{driver.get('count')} GPUs, {cuda}, {driver.get('library')}"
    return _build_component_result(
        name, facts.cuda, stack, check_cuda_nvml_gpu_memory(facts, stack.requirements), detail, _DRIVER_CODE
    )


def report_nccl(facts: ProgramFacts, count: int, stack: StackInfo) -> ComponentResult:
    findings = list(check_all_reduce(facts, count))
    if not findings and facts.exit_code:
        return _failed("NCCL", facts.last_error, seconds=facts.seconds)
    done = replace(facts, exit_code=0) if findings else facts  # an error says more than that it did not end
    return _build_component_result("NCCL", done, stack, findings, f"{count} processes added up a tensor", _GPU_CODE)


def report_ray(facts: ProgramFacts, stack: StackInfo) -> ComponentResult:
    findings = check_ray_task(facts, stack.venv_dir)
    detail = f"{stack.packages.get('ray', '')}, one node did one task"
    return _build_component_result("Ray", facts, stack, findings, detail, _RAY_CODE)


def report_c_compiler_and_linker(facts: LinkerFacts, stack: StackInfo) -> Iterator[ComponentResult]:
    """Yield the C compiler, and CUDA's libraries as a JIT compiler links them."""
    ended, name = ProgramFacts(), "C compiler"
    compiler = _build_component_result(
        name, ended, stack, check_linker(replace(facts, error_by_library={})), facts.compiler, ""
    )
    if not facts.compiler and compiler.state == "ok":
        compiler = ComponentResult(name=name, state="absent", detail=NOT_INSTALLED)
    yield compiler
    for library in ("cudart", "cuda") if facts.compiler else ():
        name = f"link -l{library}"
        if library not in facts.error_by_library:
            detail = "needs a C compiler that works" if compiler.state == "failed" else NOT_INSTALLED
            yield ComponentResult(name=name, state="absent", detail=detail)
            continue
        linked = LinkerFacts(compiler=facts.compiler, error_by_library={library: facts.error_by_library[library]})
        result = _build_component_result(name, ended, stack, check_linker(linked), "links", "")
        if result.state == "failed" and library == "cuda" and not stack.gpu_device_count:
            detail = f"{NO_GPU}, and no stub of its driver: {result.detail}"
            result = ComponentResult(name=name, state="no-gpu", detail=detail)
        yield result


def report_import_or_kernel(component: Component, facts: ProgramFacts, stack: StackInfo) -> ComponentResult:
    last = facts.steps[-1] if facts.steps else {}
    version = next((stack.packages[name] for name in component.alternative_package_names if name in stack.packages), "")
    imported = last.get("ok") and last.get("last")
    if imported or facts.exit_code is None:
        detail = f"{version}, " if version else ""
        detail += f"imports {', '.join(component.imports).replace(':', '.')}"
        detail += ", runs a kernel" if last.get("step") == "kernel" and stack.gpu_device_count else ""
        ended = replace(facts, exit_code=0) if imported else facts
        return _build_component_result(
            component.name, ended, stack, (), detail, f"import {component.first_import_module}"
        )
    if last.get("step") == "kernel" and "no kernel image is available" in str(last.get("all", "")):
        detail = f"{version} has no kernels for this GPU: {last['error']}"
        next_step = "take a wheel that was built for it, or build one with TORCH_CUDA_ARCH_LIST"
        return _failed(component.name, detail, next_step, facts.seconds)
    if not stack.gpu_device_count and _DRIVER in str(last.get("all", "")):
        detail = f"{NO_GPU}: it needs {_DRIVER}"
        return ComponentResult(name=component.name, state="no-gpu", detail=detail, seconds=facts.seconds)
    signal = f"ended by signal {-facts.exit_code}" if facts.exit_code < 0 else ""
    error = str(last.get("error") or signal or facts.last_error or "ended without a word")
    detail = f"{version} {error}".strip() + (f" ({last['where']})" if last.get("where") else "")
    shown = (
        f"{stack.interpreter_path} -c 'import {component.first_import_module}' shows all of it;"
        " compare the versions with the lock"
    )
    return _failed(component.name, detail, shown, facts.seconds)


def report_missing(component: Component, stack: StackInfo) -> ComponentResult:
    """Return the result of a component whose module is not there: a failure where the lock has it."""
    locked = next((name for name in component.alternative_package_names if name in stack.requirements.packages), "")
    if not locked:
        return ComponentResult(name=component.name, state="absent", detail=NOT_INSTALLED)
    detail = f"the lock has {locked}, and {component.first_import_module} is not there"
    return _failed(
        component.name, detail, "start a new container, or bring the machine to its lock again: rlbox apply TARGET"
    )


def run_component_checks(
    stack: StackLocation, environ: Mapping[str, str], timeout_s: float
) -> Iterator[ComponentResult]:
    """Yield results as they come; all checks together have `timeout_s` seconds.

    Raises
    ------
    NodeError
        The interpreter does not say what packages it has.
    """
    deadline = time.monotonic() + timeout_s
    workers = ThreadPoolExecutor(max(2, min(os.cpu_count() or 1, _MAX_WORKERS)))
    with open_scratch_dir_stack_probe(stack, environ) as probe:
        try:
            info = _probe_stack(probe, stack)
            yield ComponentResult(
                name="Python", state="ok", detail=f"{info.python_version}, {len(info.packages)} packages"
            )
            futures = [workers.submit(check) for check in _list_checks(probe, info, deadline)]
            for future in as_completed(futures):
                yield from future.result()
        finally:
            workers.shutdown(wait=False, cancel_futures=True)


def _probe_stack(probe: StackProbe, stack: StackLocation) -> StackInfo:
    modules = [component.first_import_module for component in load_stack_components()]
    facts = probe.run("probe_installed.py", *modules, monotonic_deadline=time.monotonic() + _LIST_TIMEOUT_S)
    if not facts.steps:
        why = facts.last_error or _("no answer in {seconds}").format(seconds=duration_text(facts.seconds))
        raise NodeError(
            _("the stack's interpreter does not work: {why}").format(why=why), where=stack.python,
            next_step=_("start a new container, or name another interpreter with --python FILE"),
        )  # fmt: skip
    installed = facts.steps[-1]
    return StackInfo(
        interpreter_path=stack.python,
        python_version=str(installed["python"]),
        packages=installed["packages"],
        modules=frozenset(installed["modules"]),
        gpu_device_count=probe_cuda_driver().device_count,
        requirements=stack.requirements,
    )


def _list_checks(
    probe: StackProbe, stack: StackInfo, deadline: float
) -> Iterator[Callable[[], Sequence[ComponentResult]]]:
    """Yield the checks: torch and Ray first, since what the frameworks import of them is compiled and read by then."""
    arch = (stack.requirements.arch or _DEFAULT_ARCH).removeprefix("sm_")
    missing = [component for component in load_stack_components() if component.first_import_module not in stack.modules]
    if "torch" in stack.packages:
        yield lambda: list(
            report_torch_and_triton(probe.run("probe_torch.py", arch, monotonic_deadline=deadline), stack)
        )
    else:
        missing.append(Component(name="torch", package="torch", imports=("torch",)))
    if "ray" in stack.packages:
        yield lambda: [report_ray(probe.run_cpu_ray_task(deadline), stack)]
    else:
        missing.append(Component(name="Ray", package="ray", imports=("ray",)))
    yield lambda: [report_driver_start(probe_cuda_and_nvml(probe, deadline), stack)]
    yield lambda: list(
        report_c_compiler_and_linker(probe.probe_linker(stack.requirements, cuda=stack._uses_cuda), stack)
    )
    for component in load_stack_components():
        if component not in missing:
            yield partial(_import_component, probe, stack, deadline, component)
    yield lambda: [_check_nccl(probe, stack, deadline)]
    yield lambda: [report_missing(component, stack) for component in missing]


def _import_component(
    probe: StackProbe, stack: StackInfo, deadline: float, component: Component
) -> list[ComponentResult]:
    facts = probe.run("probe_import.py", component.kernel, *component.imports, monotonic_deadline=deadline)
    return [report_import_or_kernel(component, facts, stack)]


def _check_nccl(probe: StackProbe, stack: StackInfo, deadline: float) -> ComponentResult:
    if not stack._uses_cuda or "torch" not in stack.packages:
        return ComponentResult(name="NCCL", state="absent", detail=NOT_INSTALLED)
    if not stack.gpu_device_count:
        return ComponentResult(name="NCCL", state="no-gpu", detail=NO_GPU)
    count = min(stack.gpu_device_count, stack.requirements.gpus or stack.gpu_device_count)
    return report_nccl(probe.run("probe_allreduce.py", str(count), monotonic_deadline=deadline), count, stack)


def format_result(result: ComponentResult) -> str:
    """Return one line, with the next step below it when it failed."""
    line = f"{_LABELS[result.state]:<7} {result.name:<18} {result.detail}"
    line += f", {duration_text(result.seconds)}" if result.seconds >= 0.1 else ""
    return f"{line}\n{'':<8}next: {result.next_step}" if result.next_step else line


def format_summary(results: Sequence[ComponentResult], seconds: float) -> str:
    """Return one line: `components: 9 ok, 1 failed, 4 not in this stack, 8.2 s`."""
    counts = [(sum(result.state == state for result in results), state, text) for state, text in _COUNTS.items()]
    shown = [f"{count} {text}" for count, state, text in counts if count or state == "ok"]
    return f"components: {', '.join(shown)}, {duration_text(seconds)}"


def results_to_json(results: Sequence[ComponentResult], python: str, seconds: float) -> dict[str, Any]:
    failed, late = ([result.name for result in results if result.state == state] for state in ("failed", "late"))
    rows = [result.as_json() for result in results]
    return {"python": python, "seconds": round(seconds, 2), "failed": failed, "late": late, "parts": rows}
