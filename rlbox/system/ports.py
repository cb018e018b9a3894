"""Ports and sockets of this machine: whether a port is free, and which process holds what, from /proc alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address

from rlbox.i18n import _
from rlbox.system.process_table import probe_processes, read_text_or_empty

LOOPBACK = "127.0.0.1"
_LISTEN = 10
ReadableHostPort = str
"""`127.0.0.1:80`, `[::1]:80`."""


@dataclass(frozen=True, kw_only=True)
class TcpSocket:
    inode: int
    local_host_port: ReadableHostPort
    remote_host_port: ReadableHostPort
    state: int

    @property
    def is_listening(self) -> bool:
        return self.state == _LISTEN

    @property
    def proc_fd_link_target(self) -> str:
        """What a link of /proc/PID/fd to it says."""
        return f"socket:[{self.inode}]"

    @property
    def local_port(self) -> int:
        return int(self.local_host_port.rpartition(":")[2])

    @property
    def is_local_address_loopback(self) -> bool:
        return ip_address(self.local_host_port.rpartition(":")[0].strip("[]")).is_loopback

    def is_listening_on(self, port: int) -> bool:
        return self.is_listening and self.local_port == port

    def find_holder_pid(self, pids: Iterable[int]) -> int | None:
        """Return the first of some processes that has it open; None when none has."""
        return next((pid for pid in pids if self.proc_fd_link_target in list_fd_link_targets(pid)), None)


def describe_port_holder_unless_free(port: int) -> str | None:
    """Return who listens on a port of this machine, `python3 (pid 123)`; None when it is free.

    Connections that linger after their server ended (TIME_WAIT) do not count: a server that starts now gets the port.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as test:
        test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            test.bind((LOOPBACK, port))
        except OSError:
            return _holder(port)
    return None


def list_tcp_sockets() -> Iterator[TcpSocket]:
    for name in ("tcp", "tcp6"):
        for line in read_text_or_empty(f"/proc/net/{name}").splitlines()[1:]:
            fields = line.split()
            if len(fields) >= 10:
                local, remote = (_address(field) for field in fields[1:3])
                yield TcpSocket(
                    inode=int(fields[9]), local_host_port=local, remote_host_port=remote, state=int(fields[3], 16)
                )


def read_default_gateway_or_empty() -> str:
    """Return the address of the default gateway, in a container that of its engine's machine; empty without one."""
    for line in read_text_or_empty("/proc/net/route").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 2 and fields[1] == "00000000":
            return socket.inet_ntoa(bytes.fromhex(fields[2])[::-1])
    return ""


def read_ephemeral_ports_or_default() -> range:
    words = read_text_or_empty("/proc/sys/net/ipv4/ip_local_port_range").split()
    return range(int(words[0]), int(words[1]) + 1) if len(words) > 1 else range(32768, 61000)


def list_fd_link_targets(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(f"{folder}/{name}")
        except OSError:
            continue


def _holder(number: int) -> str:
    wanted = {each.proc_fd_link_target for each in list_tcp_sockets() if each.is_listening_on(number)}
    for pid, process in probe_processes().items():
        if not wanted.isdisjoint(list_fd_link_targets(pid)):
            return _("{process} (pid {pid})").format(process=process.name, pid=pid)
    return _("a process that is not visible from here")


def _address(text: str) -> ReadableHostPort:
    host, __, port = text.partition(":")
    data = b"".join(bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8))
    if len(data) == 16 and data[:12] == bytes(10) + b"\xff\xff":
        data = data[12:]
    name = socket.inet_ntop(socket.AF_INET6 if len(data) == 16 else socket.AF_INET, data)
    return f"[{name}]:{int(port, 16)}" if ":" in name else f"{name}:{int(port, 16)}"
