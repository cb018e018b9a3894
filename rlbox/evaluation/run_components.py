"""Test the parts of a stack at once, each in a process of its own; yield each as it is known.

Data files are looked at without the stack: there, readable, whole as far as their format tells.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rlbox.amounts import duration_text
from rlbox.doctor.stack import StackProbe
from rlbox.doctor.stack_location import StackLocation, make_bytecode_directory
from rlbox.errors import NodeError
from rlbox.evaluation.components import (
    ABSENT,
    NO_GPU,
    Component,
    Ground,
    Part,
    driver_part,
    import_part,
    link_parts,
    load_components,
    missing_part,
    nccl_part,
    ray_part,
    torch_parts,
)
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.gpu import probe_driver

Test = Callable[[], Iterable[Part]]
_INSTALLED_S = 30.0
_ARCH = "sm_80"  # what Triton compiles for where neither a GPU nor a target says it
_AT_ONCE = 8  # an import of an inference engine takes more than a GiB

_PARQUET = b"PAR1"
_FIRST = 1 << 20


def probe_components(
    stack: StackLocation, environ: Mapping[str, str], files: Sequence[Path], timeout_s: float
) -> Iterator[Part]:
    """Yield the parts of a stack as they are known; all are done `timeout_s` seconds after the first is asked for.

    Raises
    ------
    NodeError
        The interpreter does not say what packages it has.
    """
    end = time.monotonic() + timeout_s
    workers = ThreadPoolExecutor(max(2, min(os.cpu_count() or 1, _AT_ONCE)))
    with stack_probe(stack, environ) as probe:
        try:
            ground = _ground(probe, stack, time.monotonic() + _INSTALLED_S)
            yield Part(name="Python", state="ok", detail=f"{ground.version}, {len(ground.packages)} packages")
            yield from map(_file_part, files)
            waiting = [workers.submit(lambda test: tuple(test()), test) for test in _tests(probe, ground, end)]
            for done in as_completed(waiting):
                yield from done.result()
        finally:
            workers.shutdown(wait=False, cancel_futures=True)


@contextmanager
def stack_probe(stack: StackLocation, environ: Mapping[str, str]) -> Iterator[StackProbe]:
    """Yield what asks the stack's interpreter; nothing of it is left when the block ends."""
    bytecode = make_bytecode_directory(environ, stack.requirements.mount, stack.lock) if stack.lock else None
    with tempfile.TemporaryDirectory(prefix="rlbox-stack-", ignore_cleanup_errors=True) as folder:
        probe = StackProbe(environ, stack.python, folder, f"{os.getpid()}-{time.monotonic_ns()}", bytecode)
        try:
            yield probe
        finally:
            probe.end()


def _ground(probe: StackProbe, stack: StackLocation, end: float) -> Ground:
    facts = probe.installed([row.module for row in load_components()], end)
    if not facts.steps:
        why = facts.last_error or _("no answer in {seconds}").format(seconds=duration_text(facts.seconds))
        raise NodeError(
            _("the stack's interpreter does not work: {why}").format(why=why), where=stack.python,
            next_step=_("start a new container, or name another interpreter with --python FILE"),
        )  # fmt: skip
    said = facts.steps[-1]
    return Ground(
        python=stack.python,
        version=str(said["python"]),
        packages=said["packages"],
        modules=frozenset(said["modules"]),
        devices=probe_driver().devices,
        demands=stack.requirements,
    )


def _tests(probe: StackProbe, ground: Ground, end: float) -> Iterator[Test]:
    """Yield the tests: torch and Ray first, since what the frameworks import of them is compiled and read by then."""
    yield lambda: _torch(probe, ground, end)
    yield lambda: [_ray(probe, ground, end)]
    yield lambda: [driver_part(probe.gpu(end), ground)]
    yield lambda: link_parts(probe.link(ground.demands, cuda=ground.cuda), ground)
    table = load_components()
    for component in table:
        if component.module in ground.modules:
            yield partial(_import, probe, ground, end, component)
    yield lambda: [_nccl(probe, ground, end)]
    yield lambda: [missing_part(row, ground) for row in table if row.module not in ground.modules]


def _import(probe: StackProbe, ground: Ground, end: float, component: Component) -> Iterable[Part]:
    return [import_part(component, probe.imports(component.imports, component.kernel, end), ground)]


def _torch(probe: StackProbe, ground: Ground, end: float) -> Iterable[Part]:
    if "torch" not in ground.packages:
        return [missing_part(_needed("torch"), ground)]
    return torch_parts(probe.torch(tuple, end, ground.demands.arch or _ARCH), ground)


def _ray(probe: StackProbe, ground: Ground, end: float) -> Part:
    return ray_part(probe.ray(end), ground) if "ray" in ground.packages else missing_part(_needed("Ray"), ground)


def _nccl(probe: StackProbe, ground: Ground, end: float) -> Part:
    if not ground.cuda or "torch" not in ground.packages:
        return Part(name="NCCL", state="absent", detail=ABSENT)
    if not ground.devices:
        return Part(name="NCCL", state="no-gpu", detail=NO_GPU)
    count = min(ground.devices, ground.demands.gpus or ground.devices)
    return nccl_part(probe.all_reduce(count, end), count, ground)


def _needed(name: str) -> Component:
    return Component(name=name, package=name.lower(), imports=(name.lower(),))


def _file_part(path: Path) -> Part:
    what, wrong = probe_data_file(path)
    if wrong:
        remedy = "bring the file to this path, or give the one that the job reads"
        return Part(name="data file", state="failed", detail=f"{path}: {wrong}", next_step=remedy)
    return Part(name="data file", state="ok", detail=f"{path}: {what}")


def probe_data_file(path: Path) -> tuple[str, str]:
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
