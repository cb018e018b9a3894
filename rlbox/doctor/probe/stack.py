"""Let the stack itself do a little of what a run does: calculate, load extensions, one Ray task, link an object."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rlbox.doctor.facts import Demands
from rlbox.doctor.judge.stack import LinkFacts, ProgramFacts, read_steps
from rlbox.doctor.probe.programs import Program, Ran
from rlbox.errors import TimedOut, WorkFailed
from rlbox.system.command import run_command
from rlbox.values import Command

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
_JIT = ("triton", "flashinfer-python", "sglang", "deepspeed")
# What a shell's settings for a cluster would make of a Ray of one task.
_NOT_FOR_RAY = ("RAY_ADDRESS", "RAY_TMPDIR", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_RUNTIME_ENV_HOOK")
_LINK_S = 6.0


class StackProbe:
    """What one examination starts, in a folder of its own; `token` marks its processes.

    `bytecode` is a folder that outlives it, empty for one that does not; None where the packages have their own.
    """

    def __init__(
        self, environ: Mapping[str, str], python: str, folder: str, token: str, bytecode: str | None = ""
    ) -> None:
        self._python, self._folder, self._token = python, folder, token
        self._numbers = itertools.count()
        self._started: list[Program] = []
        # The image has no bytecode: what one program compiles, the next finds.
        cache = {} if bytecode is None else {"PYTHONPYCACHEPREFIX": bytecode or f"{folder}/pyc"}
        self._environ = {**cache, **environ, "PYTHONUNBUFFERED": "1"}
        if not os.access(self._environ.get("HOME") or "/", os.W_OK):
            self._environ["HOME"] = folder

    @property
    def usable(self) -> bool:
        """Whether there is a folder in which its programs can write."""
        return bool(self._folder)

    def torch(self, extensions: Callable[[], Sequence[str]], deadline: float, arch: str = "") -> ProgramFacts:
        """Return what torch does; `extensions` are asked for once it is on its way.

        `arch` (`sm_120`) is what Triton compiles for where no GPU is; empty: it does not.
        """
        words = [arch.removeprefix("sm_")] if arch else []
        return self._run("probe_torch.py", words, self._environ, extensions, deadline)

    def ray(self, deadline: float) -> ProgramFacts:
        """Return how a Ray of one core does one task; its files lie below this examination's folder."""
        environ = {name: value for name, value in self._environ.items() if name not in _NOT_FOR_RAY}
        environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        return self._run("probe_ray.py", [f"{self._folder}/r"], environ, tuple, deadline)

    def gpu(self, deadline: float) -> ProgramFacts:
        """Return what driver and management library say of the GPUs."""
        return self._run("probe_gpu.py", [], self._environ, tuple, deadline)

    def all_reduce(self, count: int, deadline: float) -> ProgramFacts:
        """Return how `count` processes, one a GPU, add up a tensor over NCCL."""
        return self._run("probe_allreduce.py", [str(count)], self._environ, tuple, deadline)

    def installed(self, modules: Sequence[str], deadline: float) -> ProgramFacts:
        """Return which packages there are, and which of `modules` can be found."""
        return self._run("probe_installed.py", list(modules), self._environ, tuple, deadline)

    def imports(self, names: Sequence[str], kernel: str, deadline: float) -> ProgramFacts:
        """Return how one process imports `names`, MODULE or MODULE:ATTRIBUTE, and runs `kernel` on a GPU."""
        return self._run("probe_import.py", [kernel, *names], self._environ, tuple, deadline)

    def data(self, asked: Mapping[str, object], deadline: float) -> ProgramFacts:
        """Return what is in files of training data, or how their first rows were written; see probe_data.py."""
        return self._run("probe_data.py", [json.dumps(asked)], self._environ, tuple, deadline)

    def end(self) -> None:
        """End what still runs of all that was started; for one who does not wait for it."""
        for program in tuple(self._started):
            program.end()

    def _run(
        self,
        name: str,
        words: list[str],
        environ: Mapping[str, str],
        lines: Callable[[], Sequence[str]],
        deadline: float,
    ) -> ProgramFacts:
        began = time.monotonic()
        mark = f"{self._token}-{next(self._numbers)}"  # its own: the end of one is not that of another
        try:
            program = Program([self._python, str(PROGRAMS / name), *words], environ, self._folder, token=mark)
        except OSError as error:
            return ProgramFacts(exit_code=127, last_error=f"{self._python}: {error.strerror}")
        self._started.append(program)
        ran = program.wait("\n".join(lines()).encode(), deadline)
        return ProgramFacts(
            steps=read_steps(ran.output),
            exit_code=ran.exit_code,
            last_error=_last_line(ran),
            idle=ran.idle,
            seconds=time.monotonic() - began,
        )

    def link(self, demands: Demands, *, cuda: bool) -> LinkFacts:
        """Return how a compiler makes and links a small object, against CUDA's libraries where the stack has them."""
        path = self._environ.get("PATH", "")
        compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name, path=path))), "")
        wanted = demands.has(*_JIT)
        if not compiler:
            return LinkFacts(compiler="", wanted=wanted)
        source = Path(self._folder, "link.c")
        source.write_text("int main(void) { return 0; }\n", encoding="utf-8")
        error = self._compile(compiler, source, [])
        libraries = ("cudart", "cuda") if cuda and not error else ()
        flags = _cuda_flags(self._environ)
        return LinkFacts(
            compiler=compiler,
            wanted=wanted,
            error=error,
            libraries={name: self._compile(compiler, source, [*flags, f"-l{name}"]) for name in libraries},
        )

    def _compile(self, compiler: str, source: Path, words: list[str]) -> str:
        """Return the linker's or compiler's complaint, empty when it worked or took too long."""
        argv = (compiler, str(source), "-o", f"{self._folder}/linked", *words)
        try:
            done = run_command(Command(argv=argv, timeout_s=_LINK_S), environ=self._environ)
        except TimedOut:
            return ""
        except (OSError, WorkFailed) as problem:
            return problem.strerror or "" if isinstance(problem, OSError) else problem.what
        if done.ok:
            return ""
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        telling = [line for line in lines if "cannot find" in line or "error" in line]
        return (telling or lines or [f"exit code {done.exit_code}"])[0]


def _cuda_flags(environ: Mapping[str, str]) -> list[str]:
    """Return the search folders that flashinfer's and torch's JIT compilers give; source: flashinfer jit/cpp_ext.py."""
    home = environ.get("CUDA_HOME") or "/usr/local/cuda"
    return [f"-L{home}/lib64", f"-L{home}/lib64/stubs"]


def _last_line(ran: Ran) -> str:
    lines = [line.strip() for line in ran.errors.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
