"""Judge what the stack's own programs said: torch, extensions, Ray, a linked object, GPUs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlbox.amounts import duration_text
from rlbox.doctor.facts import Demands
from rlbox.doctor.judge.judge import Judge
from rlbox.findings import Finding
from rlbox.system.json_files import json_rows

SIGILL = 4
BY_HAND = {"torch": "import torch; torch.ones(2, 2) @ torch.ones(2, 2)", "Ray": "import ray; ray.init()"}
"""What the probe of each does, as somebody types it."""


@dataclass(frozen=True, kw_only=True)
class ProgramFacts:
    """What a program said: its JSON lines, how it ended (None: its time was over), the last line of its errors.

    `idle` says that it was not a busy machine that kept it from ending.
    """

    steps: tuple[Mapping[str, Any], ...] = ()
    exit_code: int | None = 0
    last_error: str = ""
    idle: bool = False
    seconds: float = 0.0


def read_steps(output: str) -> tuple[Mapping[str, Any], ...]:
    """Return the JSON objects among the lines of a program; what libraries print beside them is passed over."""
    return tuple(row for row in json_rows(output.splitlines()) if "step" in row)


def _torch(facts: ProgramFacts, demands: Demands, prefix: str) -> Iterator[Finding]:
    steps = {str(row["step"]): row for row in facts.steps}
    target = demands.target or "TARGET"
    remedy = (
        f"the error names the package: compare it with the lock (`rlbox show {target}`), then start a new container"
    )
    failed = [row for row in facts.steps if row["step"] in ("import", "cpu") and not row.get("ok")]
    if failed:
        yield Finding(
            id="torch-import" if failed[0]["step"] == "import" else "torch-op", title="torch does not calculate",
            seen=str(failed[0].get("error")), where=f"{prefix}/bin/python", remedy=remedy,
            breaks=("extension-*", "gpu-*"), covers=("numpy2-abi", "unknown-uid"),
        )  # fmt: skip
    elif "cpu" not in steps:
        yield from _no_answer(facts, "torch-op", "torch", prefix, ("extension-*",))
    path = str(steps.get("import", {}).get("file", ""))
    of_base = demands.packages and not demands.has("torch")  # a base that holds torch has it where it likes
    if path and not of_base and not path.startswith(f"{prefix}/"):
        yield Finding(
            id="torch-elsewhere", title="torch is not that of the stack", seen=path, where=path,
            remedy="take the folder that hides the stack's torch off PYTHONPATH, or remove it",
        )  # fmt: skip
    yield from _extensions(facts)


judge_torch = Judge(checks=(_torch,))
"""What is wrong with torch and the extensions that are built on it."""


def _extensions(facts: ProgramFacts) -> Iterator[Finding]:
    # An illegal instruction is a variant for another processor, of which engines ship several.
    failed = [row for row in facts.steps if row["step"] == "load" and not row.get("ok") and row.get("signal") != SIGILL]
    reasons: dict[str, list[str]] = {}
    for row in failed:
        error = str(row.get("error")).removeprefix("OSError: ").removeprefix(f"{row.get('path')}: ")
        ended = f"it ended its process by signal {row.get('signal')}"
        reasons.setdefault(error or ended, []).append(str(row.get("path")))
    for reason, paths in reasons.items():
        names = ", ".join(path.rpartition("/")[2] for path in paths)
        yield Finding(
            id="extension-load", title="a compiled extension cannot be loaded", seen=f"{names}: {reason}",
            where=paths[0],
            remedy="install a build that fits this torch and this system, or the library that it names",
            covers=("torch-ext-abi-mismatch", "libnuma-missing", "opencv-needs-gl"),
        )  # fmt: skip


def _ray(facts: ProgramFacts, _: Demands, prefix: str) -> Iterator[Finding]:
    last = facts.steps[-1] if facts.steps else None
    if last is None:
        yield from _no_answer(facts, "ray-task", "Ray", prefix, ())
    elif not last.get("ok"):
        yield Finding(
            id="ray-task", title="Ray does not do a task", seen=f"{last['step']}: {last.get('error')}",
            where=f"{prefix}/bin/python",
            remedy="start a new container; `ray start --head --block` shows more, in raylet.err of its session",
        )  # fmt: skip


judge_ray = Judge(checks=(_ray,))
"""Why Ray did not do one task."""


def _no_answer(facts: ProgramFacts, name: str, who: str, prefix: str, breaks: tuple[str, ...]) -> Iterator[Finding]:
    if facts.exit_code is None and facts.idle:
        yield Finding(
            id=f"{name}-hangs", title=f"{who} waits for something that does not come",
            seen=f"{duration_text(facts.seconds)} were not enough, and the machine was idle",
            where=f"{prefix}/bin/python",
            remedy=shows_wait(f"{prefix}/bin/python", BY_HAND[who]),
            breaks=breaks,
        )  # fmt: skip
    elif facts.exit_code is not None:
        ended = f"signal {-facts.exit_code}" if facts.exit_code < 0 else f"exit code {facts.exit_code}"
        said = f": {facts.last_error}" if facts.last_error else ""
        yield Finding(
            id=name, title=f"{who} ends without an answer", seen=f"{ended}{said}",
            where=f"{prefix}/bin/python", remedy="start a new container; if it is in the image, build it again",
            breaks=breaks,
        )  # fmt: skip


def shows_wait(python: str, code: str) -> str:
    """Return the line by which an interpreter says where it waits: ended by ABRT, it shows its stacks.

    In the foreground, or timeout sends ABRT once more to its group, which ends the interpreter while it writes them.
    """
    line = f"timeout --foreground -s ABRT 60 {shlex.quote(python)} -X faulthandler -c {shlex.quote(code)}"
    return f"{line} shows where it waits; often a name, a proxy or a network disk"


def unfinished(facts: ProgramFacts, step: str) -> bool:
    """Return whether a program did not come to `step` because the machine was busy."""
    return facts.exit_code is None and not facts.idle and all(row["step"] != step for row in facts.steps)


@dataclass(frozen=True, kw_only=True)
class LinkFacts:
    """How compiling and linking went. `libraries` maps a library asked for to the linker's error, empty for none."""

    compiler: str
    wanted: bool = False
    error: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)


def _link(facts: LinkFacts) -> Iterator[Finding]:
    if not facts.compiler:
        if facts.wanted:
            yield Finding(
                id="jit-no-compiler", title="there is no C compiler, and the stack compiles as it runs",
                seen="no cc, gcc or clang on PATH", where="PATH", remedy='add "gcc" and "g++" to base.packages',
                covers=("build-toolchain-missing", "triton-cc-build-failed"),
            )  # fmt: skip
        return
    if facts.error:
        yield Finding(
            id="jit-compile", title="the C compiler does not make a program", seen=facts.error,
            where=facts.compiler,
            remedy="install gcc and libc6-dev whole (build-essential)", covers=("triton-cc-build-failed",),
            breaks=("jit-link",),
        )  # fmt: skip
    failed = {name: error for name, error in facts.libraries.items() if error}
    if failed:
        names = " ".join(f"-l{name}" for name in failed)
        yield Finding(
            id="jit-link", title="a JIT object cannot be linked",
            seen=f"{names}: {next(iter(failed.values()))}",
            where=facts.compiler,
            remedy="put the folder of the library on LIBRARY_PATH, and the name without a version beside it",
            covers=tuple(_LINK_CAUSES[name] for name in failed if name in _LINK_CAUSES),
        )  # fmt: skip


judge_link = Judge(checks=(_link,))
"""Why an object cannot be linked as a JIT compiler does it."""
_LINK_CAUSES = {"cudart": "lcudart-link", "cuda": "lcuda-link"}


def judge_unlocked(names: Sequence[str]) -> Iterator[Finding]:
    """Yield a note for an image without the files that doctor reads."""
    if names:
        yield Finding(
            id="image-older", title="the image was built by an older rlbox", level="note",
            seen=f"it lacks {', '.join(names)}", where="image", remedy="rlbox build TARGET",
        )  # fmt: skip
