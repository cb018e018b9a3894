"""Who else has a pipe, a socket, a file or a lock that a process waits for, from /proc alone."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rlbox.machine.act.process_table import probe_command_line

_LISTEN = 10
_LOCK = re.compile(r"^(\d+): (-> )?(\w+)\s+\w+\s+\w+\s+(-?\d+) ([0-9a-f]+:[0-9a-f]+:\d+)")
_COMMAND_CHARS = 80


@dataclass(frozen=True, kw_only=True)
class TcpSocket:
    """One TCP socket of this network namespace; addresses are `HOST:PORT`."""

    inode: int
    local: str
    remote: str
    state: int

    @property
    def listens(self) -> bool:
        """Whether it waits for connections."""
        return self.state == _LISTEN


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
        for inode, each in _tcp_sockets():
            found.sockets[inode] = each
        for pid in found.pids:
            for link in _links(pid):
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
        ends += [each for each in self.sockets.values() if each.listens and each.local.rpartition(":")[2] == port]
        for each in ends:
            for pid in sorted(self.holders.get(f"socket:[{each.inode}]", ())):
                return pid
        return 0

    def peer_of(self, each: TcpSocket) -> int:
        """Return the process that has the other end of a connection of this machine; 0: not seen."""
        for other in self.sockets.values():
            if other.local == each.remote and other.remote == each.local:
                return min(self.holders.get(f"socket:[{other.inode}]", ()), default=0)
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


def _links(pid: int) -> list[str]:
    folder = f"/proc/{pid}/fd"
    found = []
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    for name in names:
        try:
            found.append(os.readlink(f"{folder}/{name}"))
        except OSError:
            continue
    return found


def _tcp_sockets() -> Iterable[tuple[int, TcpSocket]]:
    for name in ("tcp", "tcp6"):
        for line in read_text(f"/proc/net/{name}").splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10:
                continue
            local, remote = (_address(field) for field in fields[1:3])
            inode = int(fields[9])
            yield inode, TcpSocket(inode=inode, local=local, remote=remote, state=int(fields[3], 16))


def _address(text: str) -> str:
    host, _, port = text.partition(":")
    data = b"".join(bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8))
    if len(data) == 16 and data[:12] == bytes(10) + b"\xff\xff":
        data = data[12:]
    name = socket.inet_ntop(socket.AF_INET6 if len(data) == 16 else socket.AF_INET, data)
    return f"[{name}]:{int(port, 16)}" if ":" in name else f"{name}:{int(port, 16)}"


def read_text(path: str) -> str:
    """Return a file of /proc as text; empty when it cannot be read."""
    try:
        return Path(path).read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""
