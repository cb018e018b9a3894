"""A network that has nothing but the hosts that it was told of, with a Docker engine in it.

The box is a network namespace with a loopback and no way out. Its resolver answers for the declared names alone, each
with an address of the box's own; what connects there, on port 80 or 443, is carried to the real host from outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from enginebox import wait_until

NET = "10.231.77"
RESOLVER = f"{NET}.1"
PORTS = (80, 443)
_CLONE_NEWNET = 0x40000000
_NXDOMAIN, _NO_ERROR = 3, 0
_TYPE_A = 1
# `exec` makes dockerd the namespace's first process: with it everything in the box ends.
_SETUP = f"""
set -e
mount --make-rprivate /
mount --bind "$1/resolv.conf" /etc/resolv.conf
ip link set lo up
ip address add {NET}.1/32 dev lo
ip route add local {NET}.0/24 dev lo
touch "$1/ready"
PATH=$(dirname "$2"):$PATH  # containerd, runc and docker-proxy lie beside it
exec "$2" --host "unix://$1/docker.sock" --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/dockerd.pid" \
    --config-file "$1/daemon.json" --bridge none --iptables=false --ip6tables=false >"$1/dockerd.log" 2>&1
"""


class NetBox:
    """A running box; `refused` has the names that it was asked for and knew nothing of, `reached` the real hosts."""

    def __init__(self, folder: Path, declared: Iterable[str]) -> None:
        self.folder = folder
        self.declared = set(declared)
        self.refused: list[str] = []
        self.reached: set[str] = set()
        self._names: list[str] = []
        self._sockets: list[socket.socket] = []
        self._pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()

    def forget(self, declared: Iterable[str], *hosts: str) -> None:
        """Know `declared` from now on, but for `hosts`; what was asked and reached before is forgotten."""
        self.declared = {*declared} - {*hosts}
        self.refused.clear()
        self.reached.clear()

    def wrap(self, argv: list[str]) -> list[str]:
        """Return the command that runs `argv` in the box's network, with its resolver."""
        return ["nsenter", f"--target={self._pid}", "--net", "--mount", "--wd=.", "--", *argv]

    @property
    def engine(self) -> str:
        """DOCKER_HOST of the box's engine."""
        return f"unix://{self.folder}/docker.sock"

    def start(self) -> None:
        """Make the namespaces, start resolver, carriers and engine; returns when the engine answers."""
        (self.folder / "resolv.conf").write_text(f"nameserver {RESOLVER}\n")
        (self.folder / "daemon.json").write_text('{"features": {"buildkit": true, "containerd-snapshotter": true}}')
        argv = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        argv += ["sh", "-c", _SETUP, "sh", str(self.folder), find_dockerd()]
        self._process = process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, start_new_session=True)
        wait_until((self.folder / "ready").exists, "the box's network")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        self._pid = int(children[0])
        _in_background(self._open_sockets).join()
        self._serve()
        wait_until(self._engine_answers, f"the box's engine, see {self.folder}/dockerd.log")

    def stop(self) -> None:
        """End every process of the box."""
        self._ended.set()
        if self._process:
            self._process.kill()
            self._process.wait()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        wait_until(lambda: not (self._pid and Path(f"/proc/{self._pid}").exists()), "the end of the box")

    def _engine_answers(self) -> bool:
        log = self.folder / "dockerd.log"
        assert self._process is None or self._process.poll() is None, log.read_text()[-2000:]
        argv = ["docker", "--host", self.engine, "version", "--format", "{{.Server.Version}}"]
        return subprocess.run(argv, capture_output=True, timeout=30).returncode == 0

    def _open_sockets(self) -> None:
        """Open the box's sockets from a thread that has entered its network, which no other thread has."""
        with open(f"/proc/{self._pid}/ns/net") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        resolver.bind((RESOLVER, 53))
        self._sockets = [resolver, *(socket.create_server(("", port), backlog=64) for port in PORTS)]

    def _serve(self) -> None:
        resolver, *listeners = self._sockets
        _in_background(self._resolve, resolver)
        for listener in listeners:
            _in_background(self._accept, listener)

    def _resolve(self, resolver: socket.socket) -> None:
        while not self._ended.is_set():
            try:
                query, client = resolver.recvfrom(4096)
                resolver.sendto(self._answer(query), client)
            except (OSError, IndexError):  # closed at the end of the box
                return

    def _answer(self, query: bytes) -> bytes:
        """Return the answer to a DNS query: an address of the box for a declared name, else that there is no such."""
        name, end = _question(query)
        service = name.startswith("_")  # apt asks for `_http._tcp.HOST` first: a question about the same host
        name = ".".join(label for label in name.split(".") if not label.startswith("_"))
        known = any(fnmatch.fnmatch(name, pattern) for pattern in self.declared)
        if not known and name not in self.refused:
            self.refused.append(name)
        (kind,) = struct.unpack_from("!H", query, end)
        answers = b""
        if known and kind == _TYPE_A and not service:
            address = socket.inet_aton(self._address(name))
            answers = b"\xc0\x0c" + struct.pack("!HHIH", _TYPE_A, 1, 1, 4) + address
        flags = 0x8180 | (_NO_ERROR if known else _NXDOMAIN)
        head = query[:2] + struct.pack("!HHHHH", flags, 1, bool(answers), 0, 0)
        return head + query[12 : end + 4] + answers

    def _address(self, name: str) -> str:
        if name not in self._names:
            self._names.append(name)
        return f"{NET}.{10 + self._names.index(name)}"

    def _accept(self, listener: socket.socket) -> None:
        while not self._ended.is_set():
            try:
                near, _ = listener.accept()
            except OSError:
                return
            _in_background(self._carry, near)

    def _carry(self, near: socket.socket) -> None:
        """Carry one connection to the real host and port of the address that it was made to."""
        address, port = near.getsockname()
        number = int(address.rpartition(".")[2]) - 10
        with near, contextlib.suppress(OSError):
            name = self._names[number]
            with socket.create_connection((name, port), timeout=30) as far:
                self.reached.add(name)
                far.settimeout(None)
                back = _in_background(_copy, far, near)
                _copy(near, far)
                back.join()


def _question(query: bytes) -> tuple[str, int]:
    """Return the name that a query asks for, in lower case, and where its type stands."""
    labels, at = [], 12
    while size := query[at]:
        labels.append(query[at + 1 : at + 1 + size].decode("ascii", "replace").lower())
        at += 1 + size
    return ".".join(labels), at + 1


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(1 << 16):
            sink.sendall(block)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _in_background(job: Callable[..., None], *values: object) -> threading.Thread:
    thread = threading.Thread(target=job, args=values, daemon=True)
    thread.start()
    return thread


@contextmanager
def netbox(declared: Iterable[str]) -> Iterator[NetBox]:
    """Yield a running box; nothing of it is left. Its folder has a short name, for sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="netbox-"))
    box = NetBox(folder, declared)
    try:
        box.start()
        yield box
    finally:
        box.stop()
        shutil.rmtree(folder, ignore_errors=True)


def find_dockerd() -> str:
    """Return the path of a dockerd: on PATH, or the one that runs on this machine."""
    if found := shutil.which("dockerd"):
        return found
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            path = os.readlink(process / "exe")
            if path.endswith("/dockerd"):
                return path
    raise FileNotFoundError("dockerd")
