"""Self-test of a stack (`rlbox components`): the stack's interpreter uses each component once, in a process each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rlbox.amounts import duration_text, pad_translated
from rlbox.config.toml_files import load_toml
from rlbox.doctor.gpus import (
    GpuFacts,
    check_cuda_init_nvml_and_gpu_health,
    check_nccl_all_reduce,
    check_torch_and_triton_kernels,
    probe_cuda_and_nvml,
)
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.stack import (
    ProbeProgramResult,
    StackProbe,
    StackPythonAndRequirements,
    check_ray_task,
    check_torch_and_extensions,
    find_jit_compile_or_link_failures,
    open_scratch_dir_stack_probe,
    requires_cuda,
)
from rlbox.errors import MachineError
from rlbox.findings import Finding
from rlbox.i18n import _, join, translate
from rlbox.system.gpu import probe_cuda_driver

NO_GPU = _("no GPU here")
NOT_INSTALLED = _("not in this stack")
_DRIVER = "libcuda.so.1"
_CUDA_LIBRARIES: tuple[Literal["cudart", "cuda"], ...] = ("cudart", "cuda")
_LIST_TIMEOUT_S = 120.0
_MAX_WORKERS = 8  # an import of an inference engine takes more than a GiB

ComponentState = Literal["ok", "failed", "late", "no-gpu", "absent"]
_STATE_WORDS: dict[ComponentState, str] = {
    "ok": _("ok"),
    "failed": _("failed"),
    "late": _("late"),
    "no-gpu": _("no GPU"),
    "absent": _("absent"),
}
_STATE_COUNTS: dict[ComponentState, str] = {
    "ok": _("{count} ok"),
    "failed": _("{count} failed"),
    "late": _("{count} not done in time"),
    "no-gpu": _("{count} not tested: there is no GPU here"),
    "absent": _("{count} not in this stack"),
}


@dataclass(frozen=True, kw_only=True)
class StackComponent:
    """A package of a stack, or a git tree; `packages` are names that it can have in a lock.

    `imports` are MODULE or MODULE:ATTRIBUTE, imported in turn; `kernel` lines of Python with torch that run a first
    kernel of its own.
    """

    name: str
    packages: Sequence[str] = ()
    imports: Sequence[str]
    kernel: str = ""

    @property
    def _first_import_module(self) -> str:
        return self.imports[0].partition(":")[0]


@cache
def _load_stack_components() -> tuple[StackComponent, ...]:
    return tuple(StackComponent(**row) for row in load_toml(Path(__file__).with_name("components.toml"))["part"])


class ComponentResult(NamedTuple):
    """`late`: a busy machine did not come to its end; `absent`: the stack has no such component."""

    name: str
    state: ComponentState
    detail: str
    next_step: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        row = self._asdict()
        return {**row, "next": row.pop("next_step"), "seconds": round(self.seconds, 2)}


@dataclass(frozen=True, kw_only=True)
class StackInfo:
    """The stack under test: `packages` are canonical names and versions, `gpu_device_count` counts device files."""

    interpreter_path: str
    python_version: str
    packages: Mapping[str, str]
    gpu_device_count: int
    requirements: Requirements

    @property
    def _uses_cuda(self) -> bool:
        return requires_cuda(replace(self.requirements, packages=self.packages))

    @property
    def venv_dir(self) -> str:
        return self.interpreter_path.removesuffix("/bin/python")


def _judge(name: str, facts: ProbeProgramResult, findings: Iterable[Finding], detail: str) -> ComponentResult:
    """Return a component's result: that its program was ended, its first error, or `detail`."""
    if facts.exit_code is None:
        detail = _("no answer in {seconds}").format(seconds=duration_text(facts.seconds))
        return ComponentResult(name, "late", detail, _("a larger --timeout"), facts.seconds)
    error = next((finding for finding in findings if finding.level == "error"), None)
    if error is None:
        return ComponentResult(name, "ok", detail, seconds=facts.seconds)
    seen: str = join(": ", (error.title, error.seen) if error.seen else (error.title,))
    if error.where.startswith("/") and error.where not in seen:
        seen += f" ({error.where})"
    return ComponentResult(name, "failed", seen, error.remedy, facts.seconds)


def make_torch_and_triton_results(facts: ProbeProgramResult, stack: StackInfo) -> Iterator[ComponentResult]:
    steps = {str(step["step"]): step for step in facts.steps}
    findings = list(check_torch_and_extensions(facts, stack.requirements, stack.venv_dir))
    cpu = replace(facts, exit_code=0) if "cpu" in steps else facts  # what came too late is on GPUs then
    imported = steps.get("import", {})
    detail = _("{version}, multiplies on the CPU").format(version=imported.get("version", ""))
    yield _judge("torch", cpu, findings, detail)
    if not imported.get("ok"):
        return
    untimed = replace(facts, seconds=0.0) if facts.exit_code is not None else facts
    gpu_findings = list(check_torch_and_triton_kernels(facts, replace(stack.requirements, gpu="GPU")))
    torch_findings = [finding for finding in gpu_findings if finding.id != "jit-triton"]
    if not imported.get("cuda"):
        yield ComponentResult(_("torch on GPUs"), "absent", _("this torch is built for the CPU"))
    elif not stack.gpu_device_count:
        yield ComponentResult(_("torch on GPUs"), "no-gpu", NO_GPU)
    else:
        gpus = [step for step in facts.steps if step["step"] == "gpu" and step.get("ok")]
        if not gpus and not torch_findings:
            title = _("torch said nothing of the GPUs")
            torch_findings = [Finding(id="gpu-kernel", title=title, seen=facts.last_error)]
        models = ", ".join(sorted({f"{step['name']} {step['arch']}" for step in gpus}))
        text = _("multiplies on {count} x {models}, CUDA {cuda}")
        detail = text.format(count=len(gpus), models=models, cuda=imported["cuda"])
        yield _judge(_("torch on GPUs"), untimed, torch_findings, detail)
    if "triton" not in stack.packages:
        yield ComponentResult(_("Triton JIT"), "absent", NOT_INSTALLED)
    elif not stack.gpu_device_count:
        yield ComponentResult(_("Triton JIT"), "no-gpu", NO_GPU)
    else:
        triton_findings = [finding for finding in gpu_findings if finding.id == "jit-triton"]
        if "triton" not in steps:
            title, seen = _("Triton was not reached"), _("see torch on GPUs")
            triton_findings = [Finding(id="jit-triton", title=title, seen=seen)]
        detail = _("{version}, compiles and runs a kernel").format(version=stack.packages["triton"])
        yield _judge(_("Triton JIT"), untimed, triton_findings, detail)


def make_cuda_driver_result(facts: GpuFacts, stack: StackInfo) -> ComponentResult:
    driver = next((step for step in facts.cuda.steps if step["step"] == "driver"), {})
    if int(driver.get("code", -1)) == -1 and not stack.gpu_device_count:
        return ComponentResult(_("CUDA driver"), "no-gpu", NO_GPU)
    version = int(driver.get("cuda", 0))
    cuda = f"CUDA {version // 1000}.{version % 1000 // 10}"
    detail = f"{driver.get('count')} GPUs, {cuda}, {driver.get('library')}"
    return _judge(_("CUDA driver"), facts.cuda, check_cuda_init_nvml_and_gpu_health(facts, stack.requirements), detail)


def make_nccl_result(facts: ProbeProgramResult, process_count: int) -> ComponentResult:
    findings = list(check_nccl_all_reduce(facts, process_count))
    if not findings and facts.exit_code:
        findings = [Finding(id="nccl-self-test", title=facts.last_error)]
    done = replace(facts, exit_code=0) if findings else facts  # an error says more than that it did not end
    return _judge("NCCL", done, findings, _("{count} processes added up a tensor").format(count=process_count))


def check_c_compiler_and_linker(probe: StackProbe, stack: StackInfo) -> ComponentResult:
    """Return whether programs can be compiled and linked against CUDA; its driver's library is where a GPU is."""
    compiler, libraries = probe.find_compiler_on_path(), _CUDA_LIBRARIES if stack._uses_cuda else ()
    shown = libraries if stack.gpu_device_count else libraries[:1]
    findings = list(find_jit_compile_or_link_failures(probe, stack.requirements, shown))
    if compiler is None and not findings:
        return ComponentResult(_("C compiler"), "absent", NOT_INSTALLED)
    text = _("{compiler} links {libraries}") if shown else _("{compiler} links")
    detail = text.format(compiler=compiler, libraries=" ".join(shown))
    return _judge(_("C compiler"), ProbeProgramResult(), findings, detail)


def make_import_or_kernel_result(
    component: StackComponent, facts: ProbeProgramResult, stack: StackInfo
) -> ComponentResult:
    last = facts.steps[-1] if facts.steps else {}
    version = next((stack.packages[name] for name in component.packages if name in stack.packages), "")
    imported = last.get("ok") and last.get("last")
    if imported or facts.exit_code is None:
        detail = _("imports {modules}")
        if last.get("step") == "kernel" and stack.gpu_device_count:
            detail = _("imports {modules}, runs a kernel")
        detail = detail.format(modules=", ".join(component.imports).replace(":", "."))
        detail = join(", ", filter(None, (version, detail)))
        return _judge(component.name, replace(facts, exit_code=0) if imported else facts, (), detail)
    if not stack.gpu_device_count and _DRIVER in str(last.get("all", "")):
        detail = _("no GPU here: it needs {library}").format(library=_DRIVER)
        return ComponentResult(component.name, "no-gpu", detail, seconds=facts.seconds)
    if last.get("step") == "import" and _names_missing_module(str(last.get("error")), component._first_import_module):
        return make_missing_component_result(component, stack)
    ended = _("ended by signal {number}").format(number=-facts.exit_code) if facts.exit_code < 0 else ""
    error = str(last.get("error") or ended or facts.last_error or _("ended without a word"))
    where = f"({last['where']})" if last.get("where") else ""
    detail = join(" ", filter(None, (version, error, where)))
    command = f"{stack.interpreter_path} -c 'import {component._first_import_module}'"
    next_step = _("{command} shows all of it; compare the versions with the lock").format(command=command)
    if last.get("step") == "kernel" and "no kernel image is available" in str(last.get("all", "")):
        text = _("{version} has no kernels for this GPU: {error}")
        detail = text.format(version=version, error=last["error"])
        next_step = _("take a wheel that was built for it, or build one with TORCH_CUDA_ARCH_LIST")
    return ComponentResult(component.name, "failed", detail, next_step, facts.seconds)


def _names_missing_module(error: str, module: str) -> bool:
    """Whether an error says that a module itself, or its package, is not there: another missing one is a failure."""
    missing = error.removeprefix("ModuleNotFoundError: No module named '").rstrip("'")
    return missing != error and f"{module}.".startswith(f"{missing}.")


def make_missing_component_result(component: StackComponent, stack: StackInfo) -> ComponentResult:
    locked = next((name for name in component.packages if name in stack.requirements.packages), None)
    if locked is None:
        return ComponentResult(component.name, "absent", NOT_INSTALLED)
    text = _("the lock has {package}, and {module} is not there")
    detail = text.format(package=locked, module=component._first_import_module)
    next_step = _("start a new container, or bring the machine to its lock again: rlbox apply TARGET")
    return ComponentResult(component.name, "failed", detail, next_step)


def run_component_checks(
    stack: StackPythonAndRequirements, environ: Mapping[str, str], total_timeout_s: float
) -> Iterator[ComponentResult]:
    """Yield results as they come; raises `MachineError` where the interpreter does not say what packages it has."""
    deadline = time.monotonic() + total_timeout_s
    workers = ThreadPoolExecutor(max(2, min(os.cpu_count() or 1, _MAX_WORKERS)))
    with open_scratch_dir_stack_probe(stack, environ) as probe:
        try:
            info = _probe_stack(probe, stack)
            detail = _("{version}, {count} packages").format(version=info.python_version, count=len(info.packages))
            yield ComponentResult("Python", "ok", detail)
            futures = [
                workers.submit(lambda check: list(check()), check) for check in _list_checks(probe, info, deadline)
            ]
            for future in as_completed(futures):
                yield from future.result()
        finally:
            workers.shutdown(wait=False, cancel_futures=True)


def _probe_stack(probe: StackProbe, stack: StackPythonAndRequirements) -> StackInfo:
    facts = probe.run("probe_installed.py", monotonic_deadline=time.monotonic() + _LIST_TIMEOUT_S)
    if not facts.steps:
        why = facts.last_error or _("no answer in {seconds}").format(seconds=duration_text(facts.seconds))
        raise MachineError(
            _("the stack's interpreter does not work: {why}").format(why=why), where=stack.python,
            next_step=_("start a new container, or name another interpreter with --python FILE"),
        )  # fmt: skip
    installed = facts.steps[-1]
    return StackInfo(
        interpreter_path=stack.python,
        python_version=str(installed["python"]),
        packages=installed["packages"],
        gpu_device_count=probe_cuda_driver().device_file_count,
        requirements=stack.requirements,
    )


def _list_checks(
    probe: StackProbe, stack: StackInfo, deadline: float
) -> Iterator[Callable[[], Iterable[ComponentResult]]]:
    """Yield the checks: torch and Ray first, since what the frameworks import of them is compiled and read by then."""
    run = partial(probe.run, monotonic_deadline=deadline)

    def check_ray() -> Iterator[ComponentResult]:
        facts = probe.run_cpu_ray_task(deadline)
        detail = _("{version}, did one task").format(version=stack.packages["ray"])
        yield _judge("Ray", facts, check_ray_task(facts, stack.venv_dir), detail)

    def check_component(component: StackComponent) -> Iterator[ComponentResult]:
        facts = run("probe_import.py", component.kernel, *component.imports)
        yield make_import_or_kernel_result(component, facts, stack)

    def check_nccl() -> Iterator[ComponentResult]:
        if not stack._uses_cuda or "torch" not in stack.packages:
            yield ComponentResult("NCCL", "absent", NOT_INSTALLED)
        elif not stack.gpu_device_count:
            yield ComponentResult("NCCL", "no-gpu", NO_GPU)
        else:
            count = min(stack.gpu_device_count, stack.requirements.gpus or stack.gpu_device_count)
            yield make_nccl_result(run("probe_allreduce.py", str(count)), count)

    if "torch" in stack.packages:
        yield lambda: make_torch_and_triton_results(run("probe_torch.py"), stack)
    else:
        torch = StackComponent(name="torch", packages=("torch",), imports=("torch",))
        yield lambda: [make_missing_component_result(torch, stack)]
    if "ray" in stack.packages:
        yield check_ray
    else:
        ray = StackComponent(name="Ray", packages=("ray",), imports=("ray",))
        yield lambda: [make_missing_component_result(ray, stack)]
    yield lambda: [make_cuda_driver_result(probe_cuda_and_nvml(probe, deadline), stack)]
    yield lambda: [check_c_compiler_and_linker(probe, stack)]
    yield from (partial(check_component, component) for component in _load_stack_components())
    yield check_nccl


def format_result(result: ComponentResult) -> str:
    head = f"{pad_translated(_STATE_WORDS[result.state], 7)} {pad_translated(result.name, 18)}"
    line = f"{head} {translate(result.detail)}"
    line += f", {duration_text(result.seconds)}" if result.seconds >= 0.1 else ""
    step = translate(_("next: {command}").format(command=result.next_step))
    return f"{line}\n{'':<8}{step}" if result.next_step else line


def format_summary(results: Sequence[ComponentResult], seconds: float) -> str:
    """Return one line: `components: 9 ok, 1 failed, 4 not in this stack, 8.2 s`."""
    counts = [(sum(result.state == state for result in results), state, text) for state, text in _STATE_COUNTS.items()]
    shown = [text.format(count=count) for count, state, text in counts if count or state == "ok"]
    return _("components: {counts}, {seconds}").format(counts=join(", ", shown), seconds=duration_text(seconds))


def results_to_json(results: Sequence[ComponentResult], python: str, seconds: float) -> dict[str, Any]:
    failed, late = ([result.name for result in results if result.state == state] for state in ("failed", "late"))
    rows = [result.as_json() for result in results]
    return {"python": python, "seconds": round(seconds, 2), "failed": failed, "late": late, "parts": rows}
