"""Addresses, routes and ports of a node, from the kernel itself."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlbox.cluster.programs.node_wire import Row

_ROUTES, _SOCKETS = 0, 4
_NLMSG_ERROR, _NLMSG_DONE, _DUMP = 2, 3, 0x301
_RTM_NEWADDR, _RTM_GETADDR, _SOCK_DIAG = 20, 22, 20
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_TCP, _LISTEN = socket.IPPROTO_TCP, 10
_KERNEL_S = 5.0
_REACH_S = 3.0
_AT_ONCE, _LOOK_S = 256, 0.5


def _dump(protocol: int, wanted: int, asked: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the kind and content of every message that the kernel answers; `OSError` where it does not take that.

    What it lacks a part for it refuses in the last message: that is no empty answer.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as kernel:
        kernel.bind((0, 0))
        kernel.settimeout(_KERNEL_S)
        kernel.send(struct.pack("=IHHII", 16 + len(asked), wanted, _DUMP, 1, 0) + asked)
        while True:
            data = kernel.recv(1 << 16)
            while len(data) >= 16:
                size, kind = struct.unpack_from("=IH", data)
                if kind in (_NLMSG_ERROR, _NLMSG_DONE) or size < 16:
                    code = struct.unpack_from("=i", data, 16)[0] if size >= 20 else 0
                    if code < 0:
                        raise OSError(-code, "netlink")
                    return
                yield kind, data[16:size]
                data = data[(size + 3) & ~3 :]


def addresses() -> list[Row]:
    """Return the addresses of every interface: `interface`, `address`, `mtu`, `speed` (Mbit/s, 0 unknown)."""
    told = _dump(_ROUTES, _RTM_GETADDR, bytes(8))
    return [row for row in (_address(data) for kind, data in told if kind == _RTM_NEWADDR) if row["address"]]


def _address(data: bytes) -> Row:
    family, _, _, _, index = struct.unpack_from("=BBBBI", data)
    attributes: dict[int, bytes] = {}
    data = data[8:]
    while len(data) >= 4:
        size, kind = struct.unpack_from("=HH", data)
        if size < 4:
            break
        attributes[kind] = data[4:size]
        data = data[(size + 3) & ~3 :]
    raw = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS) or b""
    try:
        text, name = socket.inet_ntop(family, raw), socket.if_indextoname(index)
    except (OSError, ValueError):
        text = name = ""
    return {
        "interface": name,
        "address": text,
        "mtu": _number(f"/sys/class/net/{name}/mtu"),
        "speed": max(0, _number(f"/sys/class/net/{name}/speed")),
        "virtual": os.path.exists(f"/sys/class/net/{name}/bridge") or not _is_up(name),
    }


def _is_up(name: str) -> bool:
    return _text(f"/sys/class/net/{name}/operstate") in ("up", "unknown")


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def _number(path: str) -> int:
    text = _text(path)
    return int(text) if text.lstrip("-").isdigit() else 0


def resolve(names: list[str]) -> Row:
    """Return the addresses that each name has on this node."""
    found = {}
    for name in names:
        try:
            rows = socket.getaddrinfo(name.encode(), None, 0, socket.SOCK_STREAM)  # as it is, not by the codec of names
            found[name] = sorted({row[4][0] for row in rows})
        except (OSError, UnicodeError):
            found[name] = []
    return found


def sources(goals: list[str]) -> list[str]:
    """Return the addresses from which the kernel would send to `goals`, in their order; loopback is none of them."""
    found: dict[str, None] = {}
    for goal in goals:
        try:
            with socket.socket(socket.AF_INET6 if ":" in goal else socket.AF_INET, socket.SOCK_DGRAM) as one:
                one.connect((goal, 9))
                own = one.getsockname()[0]
        except OSError:
            continue
        if not own.startswith("127.") and own != "::1":
            found[own] = None
    return list(found)


def listening() -> list[Row]:
    """Return every TCP port that somebody listens on: `port`, `address`, `uid`, `inode`."""
    try:
        return [*_sockets(socket.AF_INET), *_sockets(socket.AF_INET6)]
    except OSError:  # a kernel that tells of sockets in its tables alone, like that of some sandboxes
        return [*_table("/proc/net/tcp"), *_table("/proc/net/tcp6")]


def _sockets(family: int) -> Iterator[Row]:
    """Yield who listens, without the sockets of others, which the tables walk through; source: linux/inet_diag.h."""
    asked = struct.pack("=BBBxI48x", family, _TCP, 0, 1 << _LISTEN)
    for kind, data in _dump(_SOCKETS, _SOCK_DIAG, asked):
        if kind == _SOCK_DIAG:
            (port,), (uid, inode) = struct.unpack_from(">H", data, 4), struct.unpack_from("=II", data, 64)
            raw = data[8:12] if family == socket.AF_INET else data[8:24]
            yield {"port": port, "address": socket.inet_ntop(family, raw), "uid": uid, "inode": str(inode)}


def _table(path: str) -> Iterator[Row]:
    try:
        with open(path) as file:
            rows = [line.split() for line in file][1:]
    except OSError:
        return
    for row in rows:
        if int(row[3], 16) == _LISTEN:
            address, port = row[1].split(":")
            yield {"port": int(port, 16), "address": _shown(address), "uid": int(row[7]), "inode": row[9]}


def _shown(text: str) -> str:
    raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def members(containers: list[str]) -> list[str]:
    """Return the processes of containers: the kernel's name for their group has the container's id in it."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            group = _text(f"/proc/{name}/cgroup")
            if any(one in group for one in containers):
                found.append(name)
    return found


def listening_of(containers: list[str], pids: list[str]) -> list[Row]:
    """Return the TCP ports that processes of containers, and `pids`, listen on: `pid` and `words` of each as well."""
    rows = listening()
    known = holders([row["inode"] for row in rows], [*pids, *(members(containers) if containers else [])])
    return [dict(row, **known[row["inode"]]) for row in rows if row["inode"] in known]


def holders(inodes: list[str], pids: list[str] | None = None) -> dict[str, Row]:
    """Return the processes, of all or of `pids`, that have sockets open, by inode, as far as this user may see them."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    found: dict[str, Row] = {}
    for name in (os.listdir("/proc") if pids is None else pids) if wanted else ():
        if not name.isdigit():
            continue
        try:
            links = {os.readlink(f"/proc/{name}/fd/{handle}") for handle in os.listdir(f"/proc/{name}/fd")}
        except OSError:
            continue
        for link in links & wanted:
            words = _text(f"/proc/{name}/cmdline").replace("\0", " ")
            found[link[8:-1]] = {"pid": int(name), "words": words.strip()[:120]}
    return found


class Listeners:
    """Sockets that listen on ports to come, to prove that they are free and that the others reach them."""

    def __init__(self) -> None:
        self._open: list[socket.socket] = []
        self._chosen: selectors.BaseSelector | None = None

    def open(self, ports: list[int], word: str, family: str) -> Row:
        """Listen on ports, 0 for one of the kernel's choice; `taken` are those that cannot be had, with the reason."""
        taken, had = {}, []
        chosen = self._chosen = self._chosen or selectors.DefaultSelector()
        first = not self._open
        for port in ports:
            one = socket.socket(socket.AF_INET6 if family == "6" else socket.AF_INET)
            try:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(("", port))
                one.listen(64)
            except OSError as error:
                one.close()
                taken[str(port)] = error.strerror or str(error)
                continue
            one.setblocking(False)
            self._open.append(one)
            had.append(one.getsockname()[1])
            chosen.register(one, selectors.EVENT_READ, word.encode())
        if first and had:
            threading.Thread(target=_answer, args=(chosen,), daemon=True).start()
        return {"taken": taken, "open": had}

    def close(self) -> None:
        """Let go of all."""
        chosen, self._chosen = self._chosen, None
        for one in self._open:
            if chosen:
                chosen.unregister(one)
            one.close()
        self._open = []


def _answer(chosen: selectors.BaseSelector) -> None:
    """Say its word to whoever comes to a socket that listens, until none is left."""
    while chosen.get_map():
        for key, _ in chosen.select(_LOOK_S):
            with contextlib.suppress(OSError):
                caller, _ = key.fileobj.accept()  # type: ignore[union-attr]
                with caller:
                    caller.sendall(key.data)
    chosen.close()


def reach(goals: list[tuple[str, int]], word: str, patience: float | None = None) -> list[Row]:
    """Connect to addresses, all at once; `said` is what was wrong, empty where the one that listens said `word`."""
    found = [{"address": address, "port": port, "said": "it did not answer", "ms": 0.0} for address, port in goals]
    for at in range(0, len(found), _AT_ONCE):
        _reach(found[at : at + _AT_ONCE], word, patience or _REACH_S)
    return found


def _reach(rows: list[Row], word: str, patience: float) -> None:
    chosen, began = selectors.DefaultSelector(), time.monotonic()
    for row in rows:
        one = socket.socket(socket.AF_INET6 if ":" in row["address"] else socket.AF_INET)
        one.setblocking(False)
        failed = one.connect_ex((row["address"], row["port"]))
        if failed in (0, errno.EINPROGRESS):
            events = selectors.EVENT_READ if word else selectors.EVENT_WRITE
            chosen.register(one, events, (row, time.monotonic()))
        else:
            row["said"] = os.strerror(failed)
            one.close()
    while chosen.get_map() and time.monotonic() - began < patience:
        for key, _ in chosen.select(patience - (time.monotonic() - began)):
            chosen.unregister(key.fileobj)
            row, at = key.data
            row["said"] = _heard(key.fileobj, word)  # type: ignore[arg-type]
            row["ms"] = round((time.monotonic() - at) * 1000, 2)
    for key in list(chosen.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]
    chosen.close()


def _heard(one: socket.socket, word: str) -> str:
    """Return what is wrong with what a connection brought, empty where that is `word`."""
    with one:
        failed = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            return os.strerror(failed)
        try:
            heard = one.recv(64).decode("utf-8", "replace") if word else ""
        except OSError as error:
            return error.strerror or str(error)
    return "" if heard == word else "something else listens there"
