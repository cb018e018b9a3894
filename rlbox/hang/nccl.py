"""What NCCL knows of a hang: reports of its RAS service, and dumps of PyTorch's flight recorder."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rlbox.foreign import whole_number
from rlbox.hang.wait_probe import find_server_pid
from rlbox.hang.waits import Pid
from rlbox.system.process_table import read_environment
from rlbox.system.safe_files import make_directories_replacing_non_directories, read_bytes, replace_file

OperationName = str
RankNumber = int
UNNAMED_OPERATION = "collective"
"""The operation of a count that NCCL before 2.28 does not tell apart by kind."""

_COMMUNICATOR = re.compile(r"#(\d+-\d+) \(([0-9a-f]+)\) ")
_KIND = re.compile(r"Communicator ranks have different (\w+) operation counts")
_ONE = re.compile(
    r"Rank (\d{1,9}) has (?:launched up to operation (\d{1,18})|not launched any operations)"
    r" -- GPU \S+ managed by process (\d{1,9})"
)
_MANY = re.compile(r"\d{1,9} ranks have (?:launched up to operation (\d{1,18})|not launched any operations)")
_LISTED = re.compile(r"Rank (\d{1,9}) -- GPU \S+ managed by process (\d{1,9})")
_HEADING = re.compile(r"(?:Communicator ranks have different|Missing communicator data) ")
_MISSING = re.compile(r"Missing communicator data from \d+ rank")


class PendingCall(NamedTuple):
    """A collective that a rank waits in, or that others wait in without it; NCCL counts the calls of each kind."""

    operation: OperationName
    call_number: int
    communicator: str


@dataclass(frozen=True, kw_only=True)
class UnhealthyCommunicator:
    """One communicator that is not well.

    `launch_counts`: for each operation (`AllReduce`) up to which call each rank has launched it, of ranks that are
    named; `highest_launch_counts`: the highest count of each operation, ranks that are not named have it.
    `pid_of_rank`: process of a rank, as the process itself knows its id. `missing_ranks`: ranks that do not answer.
    """

    name: str
    launch_counts: Mapping[OperationName, Mapping[RankNumber, int]] = field(default_factory=dict)
    highest_launch_counts: Mapping[OperationName, int] = field(default_factory=dict)
    pid_of_rank: Mapping[RankNumber, Pid] = field(default_factory=dict)
    missing_ranks: tuple[RankNumber, ...] = ()

    @property
    def missed_call_by_rank(self) -> Mapping[RankNumber, PendingCall]:
        """The ranks that have not launched what others have: an operation, and the call that others wait in."""
        found: dict[RankNumber, PendingCall] = {}
        for operation, ranks in self.launch_counts.items():
            call = PendingCall(operation, self.highest_launch_counts[operation], self.name)
            found.update({rank: call for rank, count in ranks.items() if count < call.call_number})
        return found

    @property
    def waiting_call_by_rank(self) -> Mapping[RankNumber, PendingCall]:
        """The ranks that are named with an operation that others have not launched: they wait in it."""
        return {
            rank: PendingCall(operation, self.highest_launch_counts[operation], self.name)
            for operation, ranks in self.launch_counts.items()
            for rank, count in ranks.items()
            if count == self.highest_launch_counts[operation]
        }


def parse_ras_report(text: str) -> tuple[UnhealthyCommunicator, ...]:
    """Return the communicators that the answer to `VERBOSE STATUS` calls incomplete or mismatched.

    Source: NCCL 2.28.9, src/ras/client_support.cc. Its JSON lacks a comma where a rank is missing.
    """
    found: dict[str, UnhealthyCommunicator] = {}
    for name, lines in _parts(text):
        part = _read(name, lines)
        before = found.get(name, UnhealthyCommunicator(name=name))
        found[name] = UnhealthyCommunicator(
            name=name,
            launch_counts={**before.launch_counts, **part.launch_counts},
            highest_launch_counts={**before.highest_launch_counts, **part.highest_launch_counts},
            pid_of_rank={**before.pid_of_rank, **part.pid_of_rank},
            missing_ranks=tuple(sorted({*before.missing_ranks, *part.missing_ranks})),
        )
    return tuple(found.values())


def _parts(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the lines that belong to each heading `#0-0 (HASH) MISMATCH`."""
    name, lines = "", list[str]()
    for line in text.splitlines():
        if begun := _COMMUNICATOR.match(line):
            if name:
                yield name, lines
            name, lines = begun[2], []
        elif line.strip() and not line.startswith(" "):
            if name:
                yield name, lines
            name = ""
        else:
            lines.append(line.strip())
    if name:
        yield name, lines


def _read(name: str, lines: list[str]) -> UnhealthyCommunicator:
    counts: dict[str, dict[int, int]] = {}
    pids: dict[int, int] = {}
    missing: list[int] = []
    most: dict[str, int] = {}
    operation, group, silent = "", -1, False
    for line in lines:
        if kind := _KIND.match(line):
            operation, silent = kind[1] if kind[1] != "collective" else UNNAMED_OPERATION, False
            counts[operation], most[operation] = {}, 0
        elif _HEADING.match(line):
            operation, silent = "", bool(_MISSING.match(line))
        elif operation and (many := _MANY.match(line)):
            group = int(many[1] or 0)
            most[operation] = max(most[operation], group)
        elif operation and (one := _ONE.match(line)):
            rank, group = int(one[1]), int(one[2] or 0)
            pids[rank] = int(one[3])
            counts[operation][rank] = group
            most[operation] = max(most[operation], group)
        elif listed := _LISTED.match(line):
            pids[int(listed[1])] = int(listed[2])
            if operation:
                counts[operation][int(listed[1])] = group
            elif silent:
                missing.append(int(listed[1]))
    return UnhealthyCommunicator(
        name=name, launch_counts=counts, highest_launch_counts=most, pid_of_rank=pids, missing_ranks=tuple(missing)
    )


NCCL_FOLDER = "nccl"
RAS_FILE = "ras.txt"
_RAS_ADDRESS = "127.0.0.1:28028"
_PROTOCOL = 2
_ANSWER_S = 12.0
_RANKS_S = 5
_MOST_BYTES = 4 << 20
_DUMP_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DUMP_DEFAULT = "/tmp/nccl_trace_rank_"  # noqa: S108 PyTorch's own default
_MOST_DUMPS, _MOST_DUMP_BYTES = 64, 64 << 20
_MOST_NAMES = 100_000


def collect_nccl_evidence(pids: Sequence[int], folder: Path, since_unix: float) -> dict[str, Any]:
    """Ask the RAS service that a process of the run has, and copy the recorder's dumps newer than `since_unix`.

    Returns the names of the `files` in `folder`, and in `trouble` why there is none of RAS. The dumps are pickles: they
    are copied, never opened.
    """
    environments = [read_environment(pid) for pid in pids]
    ras, trouble = _ask_ras(pids, environments)
    files = []
    if ras:
        make_directories_replacing_non_directories(folder.parent, folder.name)
        replace_file(folder / RAS_FILE, ras.encode("utf-8", "replace"))
        files.append(RAS_FILE)
    for dump in _dumps(environments, since_unix):
        with contextlib.suppress(OSError):
            data = read_bytes(dump, _MOST_DUMP_BYTES)
            make_directories_replacing_non_directories(folder.parent, folder.name)
            replace_file(folder / dump.name, data)
            files.append(dump.name)
    return {"files": files, "trouble": trouble}


def _ask_ras(pids: Sequence[int], environments: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    try:
        address = require_ras_address(pids, environments)
    except RasUnavailableError as error:
        return "", str(error)
    try:
        return require_ras_report(*address), ""
    except OSError as error:
        return "", f"NCCL's RAS at {address.host}:{address.port} did not answer: {error}"


class RasAddress(NamedTuple):
    host: str
    port: int


class RasUnavailableError(Exception):
    """No process offers NCCL's RAS; the text says why."""


def require_ras_address(pids: Sequence[int], environments: Iterable[Mapping[str, str]]) -> RasAddress:
    """Return where one of the processes offers NCCL's RAS; raises `RasUnavailableError`."""
    named = next((e["NCCL_RAS_ADDR"] for e in environments if e.get("NCCL_RAS_ADDR")), _RAS_ADDRESS)
    host, _, port = named.rpartition(":")
    number = whole_number(port, digits=5)
    if number is None:
        raise RasUnavailableError(f"NCCL_RAS_ADDR {named!r} is no address")
    host = host or "127.0.0.1"
    if find_server_pid(pids, f"{host}:{number}") is None:  # another job of this machine may listen there
        raise RasUnavailableError("no process of the run offers NCCL's RAS (NCCL 2.24 or newer, NCCL_RAS_ENABLE=1)")
    return RasAddress(host, number)


def require_ras_report(host: str, port: int, timeout_s: float = _ANSWER_S) -> str:
    """Return what `ncclras -v` prints: the state of every communicator, with the ranks that are missing.

    Raises
    ------
    OSError
        Nobody listens, or the answer did not come in time.

    Source: NCCL, src/ras/client.cc: handshake, time-out, VERBOSE STATUS, text until the end of the connection.
    """
    with socket.create_connection((host, port), timeout=1.0) as connection:
        connection.settimeout(timeout_s)
        stream = connection.makefile("rwb")
        for words in (f"CLIENT PROTOCOL {_PROTOCOL}", f"TIMEOUT {min(_RANKS_S, max(1, int(timeout_s / 2)))}"):
            stream.write(f"{words}\n".encode())
            stream.flush()
            stream.readline(1024)
        stream.write(b"VERBOSE STATUS\n")
        stream.flush()
        return stream.read(_MOST_BYTES).decode("utf-8", "replace")


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
