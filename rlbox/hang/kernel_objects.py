"""Who else has a pipe, a socket, a file or a lock that a process waits for, from /proc alone."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field

from rlbox.system.ports import TcpSocket, list_open_files, list_tcp_sockets
from rlbox.system.process_table import probe_command_line, read_text

_LOCK = re.compile(r"^(\d+): (-> )?(\w+)\s+\w+\s+\w+\s+(-?\d+) ([0-9a-f]+:[0-9a-f]+:\d+)")
_COMMAND_CHARS = 80


@dataclass
class KernelObjects:
    """What processes hold at one moment; looked up when first asked for, since it takes some 50 ms."""

    pids: tuple[int, ...]
    sockets: dict[int, TcpSocket] = field(default_factory=dict)
    holders: dict[str, set[int]] = field(default_factory=dict)
    waited: dict[int, tuple[int, ...]] = field(default_factory=dict)
    lock_holders: dict[str, set[int]] = field(default_factory=dict)

    @classmethod
    def probe(cls, pids: Iterable[int]) -> KernelObjects:
        """Look at what `pids` hold, and at all sockets and file locks of this machine."""
        found = cls(pids=tuple(pids))
        found.sockets = {each.inode: each for each in list_tcp_sockets()}
        for pid in found.pids:
            for link in list_open_files(pid):
                found.holders.setdefault(link, set()).add(pid)
        found._probe_locks()
        return found

    def others(self, link: str, pid: int) -> list[int]:
        """Return the other processes that hold what a link of /proc/PID/fd names (`pipe:[1]`, a path)."""
        return sorted(self.holders.get(link, set()) - {pid})

    def server_of(self, address: str) -> int:
        """Return the process that has the other end of a connection to `address`, or listens there; 0: not seen."""
        ends = [each for each in self.sockets.values() if each.local == address]
        port = address.rpartition(":")[2]
        ends += [each for each in self.sockets.values() if each.is_at(port)]
        for each in ends:
            for pid in sorted(self.holders.get(each.link, ())):
                return pid
        return 0

    def peer_of(self, each: TcpSocket) -> int:
        """Return the process that has the other end of a connection of this machine; 0: not seen."""
        for other in self.sockets.values():
            if other.local == each.remote and other.remote == each.local:
                return min(self.holders.get(other.link, ()), default=0)
        return self.server_of(each.remote)

    def _probe_locks(self) -> None:
        blocked: dict[str, list[int]] = {}
        holding: dict[str, list[int]] = {}
        for line in read_text("/proc/locks").splitlines():
            if found := _LOCK.match(line):
                number, arrow, _, pid, file = found.groups()
                (blocked if arrow else holding).setdefault(number, []).append(int(pid))
                if not arrow:
                    self.lock_holders.setdefault(file, set()).add(int(pid))
        for number, waiting in blocked.items():
            for pid in waiting:
                self.waited[pid] = tuple(one for one in holding.get(number, []) if one > 0)


def shown(pid: int) -> str:
    """Return a process as a sentence names it: `pid 12 (python server.py)`."""
    command = " ".join(probe_command_line(pid).split())
    if len(command) > _COMMAND_CHARS:
        command = f"{command[:_COMMAND_CHARS].rstrip()}…"
    return f"pid {pid} ({command})" if command else f"pid {pid}"


def link_of(pid: int, number: int) -> str:
    """Return what a file descriptor of a process is; empty when it cannot be seen."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return ""


def is_fifo(pid: int, number: int) -> bool:
    """Whether a file descriptor is a named pipe."""
    try:
        return stat.S_ISFIFO(os.stat(f"/proc/{pid}/fd/{number}").st_mode)
    except OSError:
        return False
