"""Addresses and ports of a machine, and whether others reach it."""

import array
import concurrent.futures
import contextlib
import fcntl
import os
import socket
import struct
from typing import Dict, List, NamedTuple, Sequence, Tuple

from rlbox.cluster.node.facts import parse_int_or_zero, read_text_or_empty

_SIOCGIFCONF, _IFREQ = 0x8912, 40
_LISTEN = "0A"
_REACH_S, _AT_ONCE = 3.0, 256
_INNER = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel")
"""What no other machine reaches: loopback, and bridges of engines."""


class InterfaceAddress(NamedTuple):
    """An address of IPv4; `mtu` in bytes, `speed` in Mbit/s, 0 where the driver is silent."""

    interface: str
    address: str
    mtu: int
    speed: int


def list_external_addresses() -> List[InterfaceAddress]:
    """Return the addresses that others may reach, that by which ssh came first."""
    buffer = array.array("B", bytes(_IFREQ * 256))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as kernel:
        reply = fcntl.ioctl(kernel, _SIOCGIFCONF, struct.pack("iL", len(buffer), buffer.buffer_info()[0]))
    data = buffer.tobytes()[: struct.unpack("iL", reply)[0]]
    found = []
    for offset in range(0, len(data), _IFREQ):
        name = data[offset : offset + 16].partition(b"\0")[0].decode().partition(":")[0]
        found.append(
            InterfaceAddress(
                interface=name,
                address=socket.inet_ntoa(data[offset + 20 : offset + 24]),
                mtu=parse_int_or_zero(read_text_or_empty(f"/sys/class/net/{name}/mtu")),
                speed=max(0, parse_int_or_zero(read_text_or_empty(f"/sys/class/net/{name}/speed"))),
            )
        )
    by_ssh = (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[2]
    found = [row for row in found if not row.interface.startswith(_INNER)]
    return sorted(found, key=lambda row: row.address != by_ssh)


# ---- who listens


class TcpListener(NamedTuple):
    port: int
    socket_inode: str
    uid: int


def list_tcp_listeners() -> List[TcpListener]:
    found = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_text_or_empty(path).splitlines()[1:]:
            row = line.split()
            if row[3] == _LISTEN:
                found.append(TcpListener(int(row[1].split(":")[1], 16), row[9], int(row[7])))
    return found


def _describe_socket_processes(inodes: List[str]) -> Dict[str, str]:
    """Return the processes that have sockets open, by inode, as far as this user may see them."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for handle in os.listdir(f"/proc/{pid}/fd"):
                inode = wanted.get(os.readlink(f"/proc/{pid}/fd/{handle}"))
                if inode:
                    command = read_text_or_empty(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
                    found[inode] = f"process {pid} ({command[:120]})"
    return found


# ---- connections between nodes


class PortListeners(NamedTuple):
    """Sockets that listen, and the ports that could not be had, each with who has it."""

    servers: List[socket.socket]
    holder_by_taken_port: Dict[int, str]


def open_port_listeners(ports: Sequence[int]) -> PortListeners:
    taken, servers = {}, []
    for port in ports:
        server = socket.socket()
        servers.append(server)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", port))
            server.listen(1024)
        except OSError as error:
            taken[port] = error.strerror or str(error)
    listeners = [row for row in list_tcp_listeners() if row.port in taken] if taken else []
    processes = _describe_socket_processes([row.socket_inode for row in listeners])
    for row in listeners:
        taken[row.port] = processes.get(row.socket_inode) or f"uid {row.uid}"
    return PortListeners(servers, taken)


def attempt_connections(endpoints: Sequence[Tuple[str, int]]) -> List[str]:
    """Return for each endpoint why it cannot be connected to, empty where it can."""
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(_attempt_connection, endpoints))


def _attempt_connection(endpoint: Tuple[str, int]) -> str:
    try:
        socket.create_connection(endpoint, _REACH_S).close()
    except socket.timeout:  # noqa: UP041 - it is another one before Python 3.10
        return "it did not answer"
    except OSError as error:
        return error.strerror or str(error)
    return ""
