"""The ports of a stage: undeclared listeners end it, and published ports are forwarded to loopback.

On a network of the run's own every listener counts, whoever holds it; on another those of the run's processes.

Services listen on loopback, where the engine cannot reach them, so published ports are carried from the address of the
container. Only the engine's machine is let in: what comes from it has the address of the network's gateway. That does
not depend on the engine: before Docker 28 whoever routes through the machine reaches a port that is published at
127.0.0.1, by the container's address.
"""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rlbox.i18n import _
from rlbox.job.plan import ServicePlan, StagePlan
from rlbox.supervise.causes import explain_undeclared_listener
from rlbox.supervise.stage_context import StageAborted, StageContext
from rlbox.supervise.stage_watch import StageWatch
from rlbox.system.ports import (
    LOOPBACK,
    TcpSocket,
    list_tcp_sockets,
    read_default_gateway_or_empty,
    read_ephemeral_ports_or_default,
)

_EVERY_S = 1.0

_OTHER = "other"


def is_port_declared(declared: Iterable[str], port: int, ephemeral_keyword_range: range) -> bool:
    return any(port in (ephemeral_keyword_range if word == "ephemeral" else _range(word)) for word in declared)


def _range(word: str) -> range:
    if "+" in word:
        first, _, count = word.partition("+")
        return range(int(first), int(first) + int(count) + 1)
    first, _, last = word.partition("-")
    return range(int(first), int(last or first) + 1)


class PortAuditor:
    """Looks at the listeners of one stage; raises `StageAborted` at the first that is undeclared.

    `ours` are the inodes of what the supervisor itself listens on, now or later.
    """

    def __init__(self, context: StageContext, stage: StagePlan, watch: StageWatch, ours: Collection[int] = ()) -> None:
        self._context, self._stage, self._gate, self._ours = context, stage, watch.gate, ours
        self._due = 0.0
        self._declared = _declared(stage)
        self._known: set[int] = set()

    def raise_on_undeclared_listener_if_due(self) -> None:
        if time.monotonic() > self._due:
            self.raise_on_undeclared_listener()

    def raise_on_undeclared_listener(self) -> None:
        self._due = time.monotonic() + _EVERY_S
        new = [each for each in _listening() if each.inode not in self._known and each.inode not in self._ours]
        if new:
            self._judge(new)
            self._known |= {each.inode for each in new}

    def _judge(self, new: Sequence[TcpSocket]) -> None:
        members = {process.pid: process.name for process in self._context.processes.list_living_members()}
        pids = {each.inode: each.find_holder_pid(members) for each in new}
        parts = self._context.processes.reap_orphans_and_list_pids_by_part()
        still, ports = _listening(), read_ephemeral_ports_or_default()
        shared = self._context.plan.network == "host"  # with processes that are none of the run's
        for each in new:
            pid = pids[each.inode]
            if not pid and (shared or each not in still):
                continue
            part = next((name for name, found in parts.items() if pid in found), _OTHER)
            if is_port_declared(self._declared.get(part, self._declared[_OTHER]), each.local_port, ports):
                continue
            holder = f"{members[pid]} (pid {pid})" if pid else _("a process that cannot be seen")
            address = each.local_host_port
            self._gate.set_broken(self._gate.outcomes.listens, f"{holder} listens on {address}")
            raise StageAborted(explain_undeclared_listener(self._stage, part, holder, address, each.local_port))


def _listening() -> list[TcpSocket]:
    return [each for each in list_tcp_sockets() if each.is_listening and not each.is_local_address_loopback]


def _declared(stage: StagePlan) -> Mapping[str, tuple[str, ...]]:
    """Return where each part of a stage may listen; a Ray head carries the command out, orphans are anybody's."""
    declared = {service.name: service.listens for service in stage.services} | {"main": stage.listens}
    if stage.ray and stage.ray.service:  # else it is carried out elsewhere
        declared[stage.ray.service] += stage.listens
    return declared | {_OTHER: tuple(word for words in declared.values() for word in words)}


_BLOCK = 1 << 16
_POLL_S = 0.1
"""How long `close` may wait for a server."""


class PublishedPortRelay:
    """Forwards connections to the published ports of the services that are ready.

    `inodes` are those of the sockets that it listens on; `gateway` may connect to `address`.
    """

    def __init__(self, ports: Mapping[str, int], gateway: str = "", address: str = "") -> None:
        self.inodes: set[int] = set()
        self._ports = ports
        self._gateway = gateway or (read_default_gateway_or_empty() if ports else "")
        self._address = address or (_address_towards(self._gateway) if self._gateway else "")
        self._servers: list[_Server] = []

    def start_relaying_published_ports(self, service: ServicePlan) -> None:
        for name, port in service.ports.items():
            if name in self._ports and self._address:
                with contextlib.suppress(OSError):  # a service that listens on all addresses needs no help
                    server = _Server(self._address, port, self._gateway)
                    self.inodes.add(os.fstat(server.fileno()).st_ino)
                    self._servers.append(server)
                    threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True).start()

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._servers.clear()
        self.inodes.clear()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads, block_on_close, allow_reuse_address = True, False, True

    def __init__(self, address: str, port: int, gateway: str) -> None:
        self.port, self._gateway = port, gateway
        super().__init__((address, port), _Connection)

    def verify_request(self, request: object, client_address: Any) -> bool:
        return bool(client_address[0] == self._gateway)


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, self.server.port)) as service:
            answer = threading.Thread(target=_copy, args=(service, self.request), daemon=True)
            answer.start()
            _copy(self.request, service)
            answer.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(_BLOCK):
            sink.sendall(block)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _address_towards(host: str) -> str:
    """Return this machine's address on the network of `host`; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
