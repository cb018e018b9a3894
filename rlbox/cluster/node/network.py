"""Addresses, routes and ports of a machine, and whether others reach it."""

import array
import contextlib
import errno
import fcntl
import os
import selectors
import socket
import struct
import time

from rlbox.cluster.node.facts import read_text, to_int

_SIOCGIFCONF, _IFREQ = 0x8912, 40
_LISTEN = "0A"
_REACH_S, _AT_ONCE = 3.0, 256


def list_addresses():
    """Return the addresses of every interface: MTU in bytes, speed in Mbit/s (0 where the driver does not tell)."""
    return [
        {
            "interface": name,
            "address": address,
            "mtu": to_int(read_text(f"/sys/class/net/{name}/mtu")),
            "speed": max(0, to_int(read_text(f"/sys/class/net/{name}/speed"))),
            "virtual": os.path.exists(f"/sys/class/net/{name}/bridge") or not is_up(name),
        }
        for name, address in _ipv4_addresses() + _ipv6_addresses()
    ]


def is_up(interface):
    return read_text(f"/sys/class/net/{interface}/operstate") in ("up", "unknown")


def _ipv4_addresses():
    buffer = array.array("B", bytes(_IFREQ * 256))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as kernel:
        reply = fcntl.ioctl(kernel, _SIOCGIFCONF, struct.pack("iL", len(buffer), buffer.buffer_info()[0]))
    data = buffer.tobytes()[: struct.unpack("iL", reply)[0]]
    rows = [data[offset : offset + _IFREQ] for offset in range(0, len(data), _IFREQ)]
    names = [row[:16].partition(b"\0")[0].decode().partition(":")[0] for row in rows]
    return [(name, socket.inet_ntoa(row[20:24])) for name, row in zip(names, rows)]  # noqa: B905 - 3.10


def _ipv6_addresses():
    rows = [line.split() for line in read_text("/proc/net/if_inet6").splitlines()]
    return [(row[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0]))) for row in rows if len(row) == 6]


def resolve_names(names):
    found = {}
    for name in names:
        try:
            rows = socket.getaddrinfo(name.encode(), None, 0, socket.SOCK_STREAM)
            found[name] = sorted({row[4][0] for row in rows})
        except (OSError, UnicodeError):
            found[name] = []
    return found


def source_addresses(targets):
    """Return the addresses from which the kernel would send to `targets`, without loopback."""
    found = []
    for target in targets:
        try:
            with socket.socket(socket.AF_INET6 if ":" in target else socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                address = probe.getsockname()[0]
        except OSError:
            continue
        if address not in found and address != "::1" and not address.startswith("127."):
            found.append(address)
    return found


# ---- who listens


def list_listeners():
    """Return every TCP port that somebody listens on."""
    found = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_text(path).splitlines()[1:]:
            row = line.split()
            if row[3] == _LISTEN:
                address, port = row[1].split(":")
                found.append(
                    {"port": int(port, 16), "address": _format_address(address), "uid": int(row[7]), "inode": row[9]}
                )
    return found


def _format_address(text):
    raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def find_holders(inodes):
    """Return the processes that have sockets open, by inode, as far as this user may see them."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = {os.readlink(f"/proc/{pid}/fd/{handle}") for handle in os.listdir(f"/proc/{pid}/fd")}
        except OSError:
            continue
        for link in links & wanted:
            command = read_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
            found[link[8:-1]] = {"pid": int(pid), "command": command[:120]}
    return found


# ---- connections between nodes


def listen(request, emit, lines):
    """Listen on ports and answer each caller with a word until the input ends; port 0: one of the kernel's choice."""
    taken, sockets, chosen = {}, {}, selectors.DefaultSelector()
    for port in request["ports"]:
        server = socket.socket(socket.AF_INET6 if request["family"] == "6" else socket.AF_INET)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", port))
            server.listen(64)
        except OSError as error:
            server.close()
            taken[port] = error.strerror or str(error)
            continue
        server.setblocking(False)
        sockets[server.getsockname()[1]] = server
        chosen.register(server, selectors.EVENT_READ)
    emit({"taken": _describe_holders(taken), "open": list(sockets)})
    while not lines.ended:
        for key, __ in chosen.select(0.2):
            with contextlib.suppress(OSError):
                caller, __ = key.fileobj.accept()
                with caller:
                    caller.sendall(request["word"].encode())


def _describe_holders(taken):
    rows = [row for row in list_listeners() if row["port"] in taken] if taken else []
    holders = find_holders([row["inode"] for row in rows])
    for row in rows:
        holder = holders.get(row["inode"])
        text = "process {} ({})".format(holder["pid"], holder["command"]) if holder else "uid {}".format(row["uid"])
        taken[row["port"]] = text
    return {str(port): text for port, text in taken.items()}


def reach(request):
    """Connect to addresses; return for each what was wrong, empty where the listener answered `word` (if any)."""
    rows = [{"address": address, "port": port, "said": "it did not answer"} for address, port in request["targets"]]
    for start in range(0, len(rows), _AT_ONCE):
        _reach(rows[start : start + _AT_ONCE], request["word"])
    return {"said": [row["said"] for row in rows]}


def _reach(rows, word):
    chosen, end = selectors.DefaultSelector(), time.monotonic() + _REACH_S
    for row in rows:
        client = socket.socket(socket.AF_INET6 if ":" in row["address"] else socket.AF_INET)
        client.setblocking(False)
        failed = client.connect_ex((row["address"], row["port"]))
        if failed in (0, errno.EINPROGRESS):
            chosen.register(client, selectors.EVENT_READ if word else selectors.EVENT_WRITE, row)
        else:
            row["said"] = os.strerror(failed)
            client.close()
    while chosen.get_map() and time.monotonic() < end:
        for key, __ in chosen.select(max(0.0, end - time.monotonic())):
            chosen.unregister(key.fileobj)
            key.data["said"] = _hear(key.fileobj, word)
    for key in list(chosen.get_map().values()):
        key.fileobj.close()
    chosen.close()


def _hear(client, word):
    with client:
        failed = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            return os.strerror(failed)
        try:
            answer = client.recv(64).decode("utf-8", "replace") if word else ""
        except OSError as error:
            return error.strerror or str(error)
    return "" if answer == word else "something else listens there"
