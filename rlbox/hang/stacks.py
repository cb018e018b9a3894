"""Write down where each process of a hung stage stands: Python stacks by py-spy, what the kernel shows for the rest."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlbox.errors import RlboxError
from rlbox.foreign import parse_untrusted_json
from rlbox.hang.waits import ProcessWait, PythonFrame
from rlbox.system.command import run_command
from rlbox.system.process_table import read_text_or_empty
from rlbox.system.safe_files import make_directories_replacing_non_directories, replace_file
from rlbox.values import Command

STACKS_FOLDER = "stacks"
_DUMP_S = 5.0
_AT_ONCE = 4
_MOST = 64
_MOST_FRAMES = 60
_REFUSED = ("Permission denied", "Permission Denied", "Operation not permitted", "EPERM")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3", "<frozen", "<string>")
NO_PERMISSION = "py-spy may not look into it: give the container cap_add = ['SYS_PTRACE'] (run of the target)"


_Threads = Sequence[dict[str, Any]]


def add_and_write_py_spy_stacks(
    waits: Sequence[ProcessWait],
    stacks_dir: Path,
    mask: Callable[[str], str],
    *,
    deadline_monotonic_s: float,
    may_continue: Callable[[], bool] = lambda: True,
) -> tuple[ProcessWait, ...]:
    """Return `waits` with the Python stacks of the first 64 processes, and write one file a process into `stacks_dir`.

    What was not looked at by the deadline, or once `may_continue()` is false, is left out.
    """
    chosen = waits[:_MOST]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        dumps = list(pool.map(lambda wait: _dump(wait.pid, deadline_monotonic_s, may_continue), chosen))
    found = []
    make_directories_replacing_non_directories(stacks_dir.parent, stacks_dir.name)
    for wait, (threads, trouble) in zip(chosen, dumps, strict=True):
        stack = _main_stack(wait.pid, threads)
        trouble = trouble or ("" if stack else "its main thread is in no Python code (it starts, or ends)")
        found.append(dataclasses.replace(wait, stack=stack, stack_error=trouble))
        replace_file(stacks_dir / f"{wait.pid}.txt", mask(_text(found[-1], threads)).encode("utf-8", "replace"))
    return (*found, *waits[_MOST:])


def dump_readable_main_python_stacks_by_pid(
    pids: Sequence[int], timeout_s: float
) -> dict[int, tuple[PythonFrame, ...]]:
    until_s = time.monotonic() + timeout_s
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        dumps = pool.map(lambda pid: _main_stack(pid, _dump(pid, until_s, lambda: True)[0]), pids[:_MOST])
    return {pid: stack for pid, stack in zip(pids, dumps, strict=False) if stack}


def _dump(pid: int, until_s: float, going: Callable[[], bool]) -> tuple[_Threads, str]:
    if not _is_python(pid):
        return (), "no Python process"
    program = _program()
    if not program:
        return (), "py-spy is not installed beside rlbox"
    trouble = ""
    for words in (("--json",), ("--json", "--nonblocking")):
        left_s = min(_DUMP_S, until_s - time.monotonic())
        if left_s <= 0 or not going():
            return (), trouble or "left out: the time for looking was over"
        try:
            outcome = run_command(Command(argv=(program, "dump", f"--pid={pid}", *words), timeout_s=left_s))
            if outcome.ok:
                return parse_untrusted_json(outcome.stdout), ""
            last = (outcome.stderr.strip().splitlines() or ["no reason given"])[-1]
            trouble = NO_PERMISSION if any(refusal in outcome.stderr for refusal in _REFUSED) else f"py-spy: {last}"
        except (RlboxError, OSError, ValueError) as error:
            trouble = f"py-spy: {error}"
    return (), trouble


def _program() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy") or ""


def _is_python(pid: int) -> bool:
    try:
        if "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe")):
            return True
    except OSError:
        return False
    return "libpython" in read_text_or_empty(f"/proc/{pid}/maps")


def _main_stack(pid: int, threads: _Threads) -> tuple[PythonFrame, ...]:
    main = next((t for t in threads if t.get("os_thread_id") == pid or t.get("thread_name") == "MainThread"), None)
    return tuple(_frame(frame) for frame in main["frames"][:_MOST_FRAMES]) if main else ()


def _frame(frame: dict[str, Any]) -> PythonFrame:
    file = str(frame["filename"])
    library = any(part in file for part in _LIBRARIES)
    return PythonFrame(function=str(frame["name"]), file=file, line=int(frame["line"]), is_library=library)


def _text(wait: ProcessWait, threads: _Threads) -> str:
    lines = [f"pid {wait.pid}: {wait.command_line}", f"cpu: {100 * wait.cpu_cores:.0f} % of a core"]
    lines += [f"rank: {wait.rank}"] if wait.rank else []
    lines += [f"no Python stack: {wait.stack_error}"] if wait.stack_error else []
    for thread in threads:
        state = "active" if thread.get("active") else "idle"
        holds = ", holds the GIL" if thread.get("owns_gil") else ""
        lines += ["", f'thread {thread.get("os_thread_id")} "{thread.get("thread_name")}" ({state}{holds})']
        lines += [f"    {_frame(frame)}  {frame['filename']}" for frame in thread["frames"]]
    lines += ["", "in the kernel:"]
    for wait_of in wait.threads:
        call = f"{wait_of.syscall or '?'}, {wait_of.kernel_function or '?'}"
        lines.append(f"  thread {wait_of.thread} ({wait_of.name}): {wait_of.description} [{call}]")
    if stack := read_text_or_empty(f"/proc/{wait.pid}/stack"):
        lines += ["", "kernel stack of the main thread:", *(f"  {line}" for line in stack.splitlines())]
    return "\n".join(lines) + "\n"
