"""Look at the files that a stage needs or must leave: there, large enough, new, and whole."""

from __future__ import annotations

import glob
import os
import time
from pathlib import Path

from rlbox.gate.act.file_content import OnBlock, content_problem, manifest_problem
from rlbox.job.gate_plan import FilePlan
from rlbox.job.gate_rule import WILD
from rlbox.job.names import FileFact

_LOOK_S = 0.05
_COARSE_NS = 50_000_000
"""Time stamps of files come from a clock that ticks some milliseconds behind the one that programs read."""


def probe_file(rule: FilePlan, on_block: OnBlock, *, since_ns: int = 0) -> FileFact:
    """Return what is at the path of `rule`, or at the worst of all that fit it when it holds wild cards.

    A directory counts as there when it holds something and nothing of its content is asked.

    Parameters
    ----------
    on_block
        Called for every MiB that is summed, and while a file is waited for; what it raises ends the look.
    since_ns
        Time (ns since 1970) since which a file must have been written; 0: any time.
    """
    if not WILD.search(rule.path) or os.path.lexists(rule.path):
        return _probe_one(rule, Path(rule.path), on_block, since_ns)
    paths = sorted(glob.glob(rule.path, recursive=True))
    if len(paths) < rule.count:
        return FileFact(problem=f"{len(paths) or 'no'} files fit, at least {rule.count} are due")
    facts = {path: _probe_one(rule, Path(path), on_block, since_ns) for path in paths}
    for path, fact in facts.items():
        if fact.problem:
            return FileFact(bytes=fact.bytes, problem=f"{os.path.basename(path)} {fact.problem}")
    return FileFact(bytes=sum(fact.bytes or 0 for fact in facts.values()))


def _probe_one(rule: FilePlan, path: Path, on_block: OnBlock, since_ns: int) -> FileFact:
    try:
        if path.is_dir():
            return FileFact(problem=_folder_problem(rule, path))
        facts = path.stat()
        if facts.st_size < rule.min_bytes:
            return FileFact(
                bytes=facts.st_size, problem=f"has {facts.st_size} bytes, at least {rule.min_bytes} are due"
            )
        if max(facts.st_mtime_ns, facts.st_ctime_ns) < since_ns - _COARSE_NS:
            return FileFact(bytes=facts.st_size, problem="is older than the stage, which has not written it")
        problem = _growth_problem(rule, path, on_block) or content_problem(path, rule.format, on_block)
        if not problem and rule.manifest:
            problem = manifest_problem(path, on_block)
        return FileFact(bytes=facts.st_size, problem=problem)
    except FileNotFoundError:
        return FileFact(problem="is not there")
    except OSError as error:
        return FileFact(problem=f"cannot be read: {error.strerror}")


def _folder_problem(rule: FilePlan, path: Path) -> str:
    if not any(path.iterdir()):
        return "the folder is empty"
    return "is a folder, not a file" if rule.manifest or rule.format or rule.min_bytes > 1 else ""


def _growth_problem(rule: FilePlan, path: Path, on_block: OnBlock) -> str:
    """Return that a file still changes, looking at it for `settled_s` unless it has been still for that long."""
    before = path.stat()
    until = time.monotonic() + rule.settled_s - max(0.0, time.time() - before.st_mtime)
    while time.monotonic() < until:
        on_block()
        time.sleep(_LOOK_S)
        now = path.stat()
        if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            return f"is still being written ({before.st_size} bytes, then {now.st_size})"
    return ""
