"""What NCCL itself knows of a hang: its RAS service, and the dumps of PyTorch's flight recorder."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlbox.foreign import whole_number
from rlbox.hang.kernel_objects import KernelObjects
from rlbox.system.process_table import read_environment
from rlbox.system.safe_files import force_directory, read_bytes, replace_file

NCCL_FOLDER = "nccl"
RAS_FILE = "ras.txt"
_RAS_ADDRESS = "127.0.0.1:28028"
_PROTOCOL = 2
_ANSWER_S = 12.0
_RANKS_S = 5
_MOST_BYTES = 4 << 20
_DUMP_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DUMP_DEFAULT = "/tmp/nccl_trace_rank_"  # noqa: S108 PyTorch's own default
_DUMP_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_DUMP_S = 2.0
_MOST_DUMPS, _MOST_DUMP_BYTES = 64, 64 << 20
_MOST_NAMES = 100_000


def collect_nccl(pids: Sequence[int], folder: Path, since_unix: float) -> dict[str, Any]:
    """Ask the RAS service that a process of the run has, and copy the recorder's dumps newer than `since_unix`.

    Returns the names of the `files` in `folder`, and in `trouble` why there is none of RAS. The dumps are pickles: they
    are copied, never opened.
    """
    environments = [read_environment(pid) for pid in pids]
    ras, trouble = _ask_ras(pids, environments)
    files = []
    if ras:
        force_directory(folder)
        replace_file(folder / RAS_FILE, ras.encode("utf-8", "replace"))
        files.append(RAS_FILE)
    _trigger_dumps(environments)
    for dump in _dumps(environments, since_unix):
        with contextlib.suppress(OSError):
            data = read_bytes(dump, _MOST_DUMP_BYTES)
            force_directory(folder)
            replace_file(folder / dump.name, data)
            files.append(dump.name)
    return {"files": files, "trouble": trouble}


def _ask_ras(pids: Sequence[int], environments: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    found = find_ras(pids, environments)
    if isinstance(found, str):
        return "", found
    try:
        return ask_ras(*found), ""
    except OSError as error:
        return "", f"NCCL's RAS at {found[0]}:{found[1]} did not answer: {error}"


def find_ras(pids: Sequence[int], environments: Iterable[Mapping[str, str]]) -> tuple[str, int] | str:
    """Return host and port at which one of the processes offers NCCL's RAS, or why none does."""
    named = next((e["NCCL_RAS_ADDR"] for e in environments if e.get("NCCL_RAS_ADDR")), _RAS_ADDRESS)
    host, _, port = named.rpartition(":")
    number = whole_number(port, digits=5)
    if number is None:
        return f"NCCL_RAS_ADDR {named!r} is no address"
    host = host or "127.0.0.1"
    objects = KernelObjects.probe(pids)  # another job of this machine may listen there
    if objects.server_of(f"{host}:{number}") not in pids:
        return "no process of the run offers NCCL's RAS (NCCL 2.24 or newer, NCCL_RAS_ENABLE=1)"
    return host, number


def ask_ras(host: str, port: int, answer_s: float = _ANSWER_S) -> str:
    """Return what `ncclras -v` prints: the state of every communicator, with the ranks that are missing.

    Raises
    ------
    OSError
        Nobody listens, or the answer did not come in time.

    Source: NCCL, src/ras/client.cc: handshake, time-out, VERBOSE STATUS, text until the end of the connection.
    """
    with socket.create_connection((host, port), timeout=1.0) as connection:
        connection.settimeout(answer_s)
        stream = connection.makefile("rwb")
        for words in (f"CLIENT PROTOCOL {_PROTOCOL}", f"TIMEOUT {min(_RANKS_S, max(1, int(answer_s / 2)))}"):
            stream.write(f"{words}\n".encode())
            stream.flush()
            stream.readline(1024)
        stream.write(b"VERBOSE STATUS\n")
        stream.flush()
        return stream.read(_MOST_BYTES).decode("utf-8", "replace")


def _trigger_dumps(environments: Sequence[Mapping[str, str]]) -> None:
    """Ask for dumps through the recorder's pipes, where they are switched on, and give it a moment."""
    told = False
    for prefix in {e[_DUMP_PIPE] for e in environments if e.get(_DUMP_PIPE)}:
        for pipe in [path for path in _beginning(prefix) if path.suffix == ".pipe"][:_MOST_DUMPS]:
            with contextlib.suppress(OSError):
                handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    if stat.S_ISFIFO(os.fstat(handle).st_mode):  # the name is the workload's, the file may be anybody's
                        os.write(handle, b"1\n")
                        told = True
                finally:
                    os.close(handle)
    if told:
        time.sleep(_DUMP_S)


def _dumps(environments: Sequence[Mapping[str, str]], since_unix: float) -> list[Path]:
    prefixes = {e[name] for e in environments for name in _DUMP_FILES if e.get(name)} | {_DUMP_DEFAULT}
    found = []
    for prefix in sorted(prefixes):
        for path in _beginning(prefix):
            with contextlib.suppress(OSError):
                facts = path.lstat()
                new = facts.st_mtime >= since_unix and facts.st_size <= _MOST_DUMP_BYTES
                if new and stat.S_ISREG(facts.st_mode):
                    found.append(path)
    return found[:_MOST_DUMPS]


def _beginning(prefix: str) -> list[Path]:
    """Return what has a path that begins so, sorted; the folder is resolved, links in it are not followed."""
    path = Path(prefix)
    try:
        folder = path.parent.resolve()
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, _MOST_NAMES)]
    except (OSError, RuntimeError):
        return []
    return sorted(folder / name for name in names if name.startswith(path.name)) if path.name else []
