"""Judge the search paths of a shell: programs, Python modules, libraries, CUDA."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rlbox.doctor.facts import Demands
from rlbox.doctor.judge.judge import Judge
from rlbox.findings import Finding

_LISTS = ("LD_LIBRARY_PATH", "LIBRARY_PATH", "PATH", "PYTHONPATH", "CPATH")
_COMPAT = ("/compat",)


@dataclass(frozen=True, kw_only=True)
class PathFacts:
    """What the shell finds. `programs` maps names to paths (empty: not found), `prefix` is where they belong.

    `lib64` is `link`, `missing`, `dangling`, `nested` (a link inside a real directory) or `folder`. `shadows` are
    folders of PYTHONPATH with a package of the stack in them. `cuda` maps a CUDA home's missing files to why they are
    wanted; `linker` are lines of the loader's configuration that name stubs or compat folders.
    """

    prefix: str
    python_error: str = ""
    programs: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    lib64: str = "link"
    shadows: tuple[str, ...] = ()
    cuda_home: str = ""
    cuda_missing: tuple[str, ...] = ()
    linker: tuple[str, ...] = ()
    preload_missing: tuple[str, ...] = ()


def _starts(facts: PathFacts, _: Demands) -> Iterator[Finding]:
    if facts.python_error:
        python = f"{facts.prefix}/bin/python"
        yield Finding(
            id="stack-python",
            title="the stack's Python does not start",
            seen=f"{python} {facts.python_error}",
            where=python,
            remedy="start a new container; if it is in the image: rlbox build --rebuild TARGET",
            breaks=("torch-*", "ray-*", "extension-*", "path-*", "stack-not-in-venv", "*-load", "libnuma-missing"),
        )


def _programs(facts: PathFacts, _: Demands) -> Iterator[Finding]:
    wrong = {name: path for name, path in facts.programs.items() if not path.startswith(f"{facts.prefix}/")}
    if not wrong:
        return
    right = f"{facts.prefix}/bin"
    texts = [f"{name} is {path or 'not found'}" for name, path in sorted(facts.programs.items())]
    yield Finding(
        id="path-shadowed" if any(wrong.values()) else "ray-not-on-path",
        title="programs do not come from the stack's environment",
        seen=", ".join(texts),
        where="PATH",
        remedy=f'export PATH="{right}:$PATH" (and `conda deactivate` where conda is first)',
        breaks=("ray-not-on-path", "path-in-every-shell", "ray-task", "hf-old-switches"),
        covers=("ray-not-on-path", "conda-shadows-python", "interpreter-in-the-way"),
    )


def _lib64(facts: PathFacts, _: Demands) -> Iterator[Finding]:
    says = {
        "missing": "there is no lib64",
        "dangling": "lib64 is a link to nothing",
        "nested": "lib64 is a real directory with the link inside it",
    }
    if facts.lib64 in says:
        path = f"{facts.prefix}/lib64"
        yield Finding(
            id="lib64-missing",
            title="the environment has no lib64: JIT compilers link with -L…/lib64",
            seen=says[facts.lib64],
            where=path,
            remedy=f"ln -sfn lib {path}"
            if facts.lib64 != "nested"
            else f"rm {path}/lib && rmdir {path} && ln -s lib {path}",
            repair=("link", path, "lib") if facts.lib64 != "nested" else (),
            breaks=("jit-*",),
            covers=("lcudart-link",),
        )


def _stubs(facts: PathFacts, demands: Demands) -> Iterator[Finding]:
    runtime = [word for word in _words(facts, "LD_LIBRARY_PATH") if _is_stubs(word)]
    words = _words(facts, "LIBRARY_PATH")
    after = [word for index, word in enumerate(words) if not _is_stubs(word) and any(map(_is_stubs, words[:index]))]
    loader = [line for line in facts.linker if "stubs" in line]
    texts = [f"LD_LIBRARY_PATH has {word}" for word in runtime] + [f"the loader is told {line}" for line in loader]
    texts += [f"LIBRARY_PATH has stubs before {word}" for word in after]
    if texts:
        yield Finding(
            id="cuda-stubs-order",
            title="CUDA's stub libraries stand where real ones are looked for",
            seen="; ".join(texts),
            where="LD_LIBRARY_PATH" if runtime else "LIBRARY_PATH" if after else "/etc/ld.so.conf.d",
            remedy="take …/stubs off LD_LIBRARY_PATH and the loader; on LIBRARY_PATH it comes last",
            breaks=("gpu-*", "cuda-driver-*", "jit-*"),
            covers=("lcuda-link", "lcuda-link-in-process", "libcuda-missing"),
        )
    compat = [word for word in _words(facts, "LD_LIBRARY_PATH") if word.rstrip("/").endswith(_COMPAT)]
    compat += [line for line in facts.linker if line.split()[-1].rstrip("/").endswith(_COMPAT)]
    if compat and demands.grade in ("consumer", "workstation"):
        yield Finding(
            id="cuda-compat-shadows-driver",
            title="CUDA's forward-compatibility library hides the driver",
            seen=", ".join(compat),
            where="LD_LIBRARY_PATH",
            remedy="take it off: GeForce and workstation cards have no forward compatibility (errors 803 and 804)",
            breaks=("gpu-*",),
            covers=("cuda-compat-shadows-driver",),
        )


def _is_stubs(word: str) -> bool:
    return "stubs" in word.rstrip("/").rpartition("/")[2]


def _words(facts: PathFacts, name: str) -> list[str]:
    return [word for word in facts.environ.get(name, "").split(":") if word]


def _empty_elements(facts: PathFacts, _: Demands) -> Iterator[Finding]:
    environ = facts.environ
    found = [name for name in _LISTS if environ.get(name) and "" in environ[name].split(":")]
    if found:
        yield Finding(
            id="empty-path-element",
            title="a search path has an empty element, which means the current folder",
            level="warning",
            seen=", ".join(f"{name}={environ[name]}" for name in found),
            where=", ".join(found),
            remedy="write ${NAME:+:$NAME} when something is put in front, and no colon at either end",
            covers=("lcudart-link",),
        )


def _python_home(facts: PathFacts, _: Demands) -> Iterator[Finding]:
    if home := facts.environ.get("PYTHONHOME"):
        yield Finding(
            id="pythonhome-set",
            title="PYTHONHOME points every Python at another standard library",
            seen=f"PYTHONHOME={home}",
            where="PYTHONHOME",
            remedy="unset PYTHONHOME",
            breaks=("torch-*", "ray-*", "path-in-every-shell", "libnuma-missing"),
            covers=("interpreter-in-the-way",),
        )


def _shadows(facts: PathFacts, _: Demands) -> Iterator[Finding]:
    if facts.shadows:
        yield Finding(
            id="pythonpath-shadows",
            title="PYTHONPATH has other copies of packages of the stack",
            seen=", ".join(facts.shadows),
            where="PYTHONPATH",
            remedy="take these folders off PYTHONPATH",
            breaks=("torch-*", "ray-*"),
            covers=("interpreter-in-the-way",),
        )


def _preload(facts: PathFacts, _: Demands) -> Iterator[Finding]:
    if facts.preload_missing:
        yield Finding(
            id="preload-missing",
            title="LD_PRELOAD names a library that is not there",
            level="warning",
            seen=", ".join(facts.preload_missing),
            where="LD_PRELOAD",
            remedy="unset LD_PRELOAD, or correct it",
        )


def _cuda(facts: PathFacts, _: Demands) -> Iterator[Finding]:
    if facts.cuda_missing:
        yield Finding(
            id="cuda-home",
            title="CUDA_HOME is no CUDA toolkit",
            seen=f"{facts.cuda_home} lacks {', '.join(facts.cuda_missing)}",
            where=facts.cuda_home,
            remedy="set CUDA_HOME to a toolkit with bin/nvcc and lib64/libcudart.so, or unset it",
            breaks=("jit-*",),
            covers=("cuda-home",),
        )


judge_paths = Judge(
    first=_starts, checks=(_programs, _lib64, _stubs, _empty_elements, _python_home, _shadows, _preload, _cuda)
)
"""What is wrong with the search paths."""
