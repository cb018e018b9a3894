"""Addresses and ports of a machine, and whether others reach it."""

import array
import concurrent.futures
import contextlib
import fcntl
import os
import socket
import struct

from rlbox.cluster.node.facts import read_text, to_int

_SIOCGIFCONF, _IFREQ = 0x8912, 40
_LISTEN = "0A"
_REACH_S, _AT_ONCE = 3.0, 256
_INNER = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel")
"""What no other machine reaches: loopback, and bridges of engines."""


def list_addresses():
    """Return the addresses of IPv4 that others may reach: MTU in bytes, speed in Mbit/s (0: the driver is silent).

    That by which ssh came is the first.
    """
    buffer = array.array("B", bytes(_IFREQ * 256))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as kernel:
        reply = fcntl.ioctl(kernel, _SIOCGIFCONF, struct.pack("iL", len(buffer), buffer.buffer_info()[0]))
    data = buffer.tobytes()[: struct.unpack("iL", reply)[0]]
    found = []
    for offset in range(0, len(data), _IFREQ):
        name = data[offset : offset + 16].partition(b"\0")[0].decode().partition(":")[0]
        found.append(
            {
                "interface": name,
                "address": socket.inet_ntoa(data[offset + 20 : offset + 24]),
                "mtu": to_int(read_text(f"/sys/class/net/{name}/mtu")),
                "speed": max(0, to_int(read_text(f"/sys/class/net/{name}/speed"))),
            }
        )
    by_ssh = (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[2]
    found = [row for row in found if not row["interface"].startswith(_INNER)]
    return sorted(found, key=lambda row: row["address"] != by_ssh)


# ---- who listens


def list_listeners():
    """Return (port, socket's inode, user) of every TCP port that somebody listens on."""
    found = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_text(path).splitlines()[1:]:
            row = line.split()
            if row[3] == _LISTEN:
                found.append((int(row[1].split(":")[1], 16), row[9], int(row[7])))
    return found


def find_processes(inodes):
    """Return the processes that have sockets open, by inode, as far as this user may see them."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for handle in os.listdir(f"/proc/{pid}/fd"):
                inode = wanted.get(os.readlink(f"/proc/{pid}/fd/{handle}"))
                if inode:
                    command = read_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
                    found[inode] = f"process {pid} ({command[:120]})"
    return found


# ---- connections between nodes


def listen(request, emit, lines):
    """Listen on ports until the input ends; report those that could not be had, each with who has it."""
    taken, servers = {}, []
    for port in request["ports"]:
        server = socket.socket()
        servers.append(server)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", port))
            server.listen(1024)
        except OSError as error:
            taken[port] = error.strerror or str(error)
    listeners = [row for row in list_listeners() if row[0] in taken] if taken else []
    processes = find_processes([inode for __, inode, __ in listeners])
    for port, inode, uid in listeners:
        taken[port] = processes.get(inode) or f"uid {uid}"
    emit({"taken": {str(port): holder for port, holder in taken.items()}})
    while lines.next(None):
        pass


def reach(request):
    """Connect to addresses; return for each what was wrong, empty where that succeeded."""
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        return {"said": list(pool.map(connect, request["targets"]))}


def connect(target):
    try:
        socket.create_connection(tuple(target), _REACH_S).close()
    except socket.timeout:  # noqa: UP041 - it is another one before Python 3.10
        return "it did not answer"
    except OSError as error:
        return error.strerror or str(error)
    return ""
