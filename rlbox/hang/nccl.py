"""What NCCL knows of a hang: reports of its RAS service, and dumps of PyTorch's flight recorder."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import socket
import stat
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rlbox.foreign import parse_digits
from rlbox.hang.waits import Pid, find_pid_serving_address
from rlbox.system.process_table import read_environ_or_empty
from rlbox.system.safe_files import make_directories_replacing_non_directories, read_bytes, replace_file

OperationName = str
RankNumber = int
UNNAMED_OPERATION = "collective"
"""The operation of a count that NCCL before 2.28 does not tell apart by kind."""

_COMMUNICATOR = re.compile(r"#(\d+-\d+) \(([0-9a-f]+)\) ")
_KIND = re.compile(r"Communicator ranks have different (\w+) operation counts")
_LAUNCHED = r"(?:launched up to operation (?P<count>\d{1,18})|not launched any operations)"
_ONE = re.compile(rf"Rank (?P<rank>\d{{1,9}}) has {_LAUNCHED} -- GPU \S+ managed by process (?P<pid>\d{{1,9}})")
_MANY = re.compile(rf"(?P<ranks>\d{{1,9}}) ranks have {_LAUNCHED}")
_LISTED = re.compile(r"Rank (?P<rank>\d{1,9}) -- GPU \S+ managed by process (?P<pid>\d{1,9})")
_HEADING = re.compile(r"(?:Communicator ranks have different|Missing communicator data) ")
_MISSING = re.compile(r"Missing communicator data from \d+ rank")


class PendingCall(NamedTuple):
    """A collective that a rank waits in, or that others wait in without it; NCCL counts the calls of each kind."""

    operation: OperationName
    call_number: int
    communicator: str


class UnnamedRanks(NamedTuple):
    launch_count: int
    number_of_ranks: int


@dataclass(kw_only=True)
class UnhealthyCommunicator:
    """One communicator that is not well.

    `launch_counts_of_named_ranks`: for each operation (`AllReduce`) up to which call each rank that NCCL names has
    launched it; `highest_launch_counts`: the highest count of each operation, which all other ranks have.
    `unnamed_ranks`: of the largest part of the ranks NCCL tells the count and how many they are, but no names.
    `pid_of_rank`: process of a rank, as the process itself knows its id. `missing_ranks`: ranks that do not answer.
    """

    name: str
    launch_counts_of_named_ranks: dict[OperationName, dict[RankNumber, int]] = field(default_factory=dict)
    highest_launch_counts: dict[OperationName, int] = field(default_factory=dict)
    unnamed_ranks: dict[OperationName, UnnamedRanks] = field(default_factory=dict)
    pid_of_rank: dict[RankNumber, Pid] = field(default_factory=dict)
    missing_ranks: set[RankNumber] = field(default_factory=set)

    @property
    def missed_call_by_rank(self) -> Mapping[RankNumber, PendingCall]:
        found: dict[RankNumber, PendingCall] = {}
        for operation, ranks in self.launch_counts_of_named_ranks.items():
            call = PendingCall(operation, self.highest_launch_counts[operation], self.name)
            found.update({rank: call for rank, count in ranks.items() if count < call.call_number})
        return found

    @property
    def waiting_call_by_rank(self) -> Mapping[RankNumber, PendingCall]:
        """The ranks that are named with an operation that others have not launched: they wait in it."""
        return {
            rank: PendingCall(operation, self.highest_launch_counts[operation], self.name)
            for operation, ranks in self.launch_counts_of_named_ranks.items()
            for rank, count in ranks.items()
            if count == self.highest_launch_counts[operation]
        }


def parse_ras_report(text: str) -> tuple[UnhealthyCommunicator, ...]:
    """Return the communicators that the answer to `VERBOSE STATUS` calls incomplete or mismatched.

    Source: NCCL 2.28.9, src/ras/client_support.cc. Its JSON lacks a comma where a rank is missing.
    """
    readers: dict[str, _CommunicatorReader] = {}
    reader: _CommunicatorReader | None = None
    for line in text.splitlines():
        if heading := _COMMUNICATOR.match(line):
            reader = readers.setdefault(heading[2], _CommunicatorReader(heading[2]))
        elif line.strip() and not line.startswith(" "):
            reader = None
        elif reader:
            reader.read_line(line.strip())
    return tuple(reader.communicator for reader in readers.values())


class _CommunicatorReader:
    def __init__(self, name: str) -> None:
        self.communicator = UnhealthyCommunicator(name=name)
        self._operation, self._count, self._lists_missing = "", -1, False

    def read_line(self, line: str) -> None:
        communicator, operation = self.communicator, self._operation
        if kind := _KIND.match(line):
            self._operation = kind[1] if kind[1] != "collective" else UNNAMED_OPERATION
            communicator.launch_counts_of_named_ranks[self._operation] = {}
            communicator.highest_launch_counts[self._operation] = 0
        elif _HEADING.match(line):
            self._operation, self._lists_missing = "", bool(_MISSING.match(line))
        elif operation and (launched := _MANY.match(line) or _ONE.match(line)):
            self._count = int(launched["count"] or 0)
            highest = communicator.highest_launch_counts
            highest[operation] = max(highest[operation], self._count)
            if launched.re is _ONE:
                self._add_rank(int(launched["rank"]), int(launched["pid"]))
            else:
                communicator.unnamed_ranks.setdefault(operation, UnnamedRanks(self._count, int(launched["ranks"])))
        elif listed := _LISTED.match(line):
            self._add_rank(int(listed["rank"]), int(listed["pid"]))

    def _add_rank(self, rank: int, pid: int) -> None:
        self.communicator.pid_of_rank[rank] = pid
        if self._operation:
            self.communicator.launch_counts_of_named_ranks[self._operation][rank] = self._count
        elif self._lists_missing:
            self.communicator.missing_ranks.add(rank)


NCCL_FOLDER = "nccl"
RAS_FILE = "ras.txt"
_RAS_VARIABLE, _RAS_ADDRESS = "NCCL_RAS_ADDR", "127.0.0.1:28028"
_RAS_PORTS = range(28029, 32768)  # beside NCCL's own, and below those that Linux gives to connections
_PROTOCOL = 2
_ANSWER_S = 12.0
_RANKS_S = 5
_MOST_BYTES = 4 << 20
_DUMP_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DUMP_DEFAULT = "/tmp/nccl_trace_rank_"  # noqa: S108 PyTorch's own default
_MOST_DUMPS, _MOST_DUMP_BYTES = 64, 64 << 20


def write_ras_report_and_copy_dumps(pids: Sequence[int], folder: Path, since_unix: float) -> dict[str, Any]:
    """Ask the RAS service that a process of the run has, and copy the recorder's dumps newer than `since_unix`.

    Returns the names of the `files` in `folder`, and in `trouble` why there is none of RAS. The dumps are pickles: they
    are copied, never opened.
    """
    environments = [read_environ_or_empty(pid) for pid in pids]
    contents, trouble = dict[str, bytes](), ""
    if address := find_ras_address(pids, environments):
        try:
            contents[RAS_FILE] = query_ras_report(*address).encode("utf-8", "replace")
        except OSError as error:
            trouble = f"NCCL's RAS at {address.host}:{address.port} did not answer: {error}"
    else:
        trouble = "no process of the run offers NCCL's RAS (NCCL 2.24 or newer, NCCL_RAS_ENABLE=1)"
    for dump in _list_dumps(environments, since_unix):
        with contextlib.suppress(OSError):
            contents[dump.name] = read_bytes(dump, _MOST_DUMP_BYTES)
    for name, data in contents.items():
        make_directories_replacing_non_directories(folder.parent, folder.name)
        replace_file(folder / name, data)
    return {"files": list(contents), "trouble": trouble}


def make_ras_address_env_unless_set(run_id: str) -> dict[str, str]:
    """Give a run a port of its own: several jobs may listen on NCCL's default, and any of them answers there."""
    if _RAS_VARIABLE in os.environ:
        return {}
    return {_RAS_VARIABLE: f"127.0.0.1:{_RAS_PORTS[zlib.crc32(run_id.encode()) % len(_RAS_PORTS)]}"}


class RasAddress(NamedTuple):
    host: str
    port: int


def find_ras_address(pids: Sequence[int], environments: Iterable[Mapping[str, str]]) -> RasAddress | None:
    """Return where one of the processes offers NCCL's RAS."""
    named = next((e[_RAS_VARIABLE] for e in environments if e.get(_RAS_VARIABLE)), _RAS_ADDRESS)
    host, _, port = named.rpartition(":")
    host, number = host or "127.0.0.1", parse_digits(port, max_digits=5)
    if number is None or find_pid_serving_address(pids, f"{host}:{number}") is None:  # another job may listen there
        return None
    return RasAddress(host, number)


def query_ras_report(host: str, port: int, timeout_s: float = _ANSWER_S) -> str:
    """Return what `ncclras -v` prints; raises `OSError`.

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


def _list_dumps(environments: Sequence[Mapping[str, str]], since_unix: float) -> list[Path]:
    prefixes = {e[name] for e in environments for name in _DUMP_FILES if e.get(name)} | {_DUMP_DEFAULT}
    found = []
    for path in (Path(path) for prefix in sorted(prefixes) for path in sorted(glob.glob(f"{glob.escape(prefix)}*"))):
        with contextlib.suppress(OSError):
            facts = path.lstat()
            if facts.st_mtime >= since_unix and facts.st_size <= _MOST_DUMP_BYTES and stat.S_ISREG(facts.st_mode):
                found.append(path)
    return found[:_MOST_DUMPS]
