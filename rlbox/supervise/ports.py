"""The ports of a stage: undeclared listeners end it, and published ports are forwarded to loopback.

On a network of the run's own every listener counts, whoever holds it; on another those of the run's processes. Loopback
is left alone: on the one nobody else reaches it, and on the other the machine's own users do.

Services listen on loopback, where the engine cannot reach them, so published ports are carried from the address of the
container. Only the engine's machine is let in: what comes from it has the address of the network's gateway. That does
not depend on the engine: before Docker 28 whoever routes through the machine reaches a port that is published at
127.0.0.1, by the container's address.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import socket
import threading
import time
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from rlbox.job.plan import ServicePlan, StagePlan
from rlbox.job.ports import is_port_allowed
from rlbox.supervise.causes import explain_undeclared_listener
from rlbox.supervise.stage_context import StageContext, StageStopped
from rlbox.supervise.stage_watch import StageWatch
from rlbox.system.ports import LOOPBACK, TcpSocket, list_tcp_sockets, read_default_gateway, read_ephemeral_ports

_EVERY_S, _SHARE = 1.0, 20
"""How often at most, and that looking takes a twentieth of the time at most."""

_OTHER = "other"


class PortAuditor:
    """Looks at the listeners of one stage from time to time; raises `StageStopped` at the first that is undeclared.

    Parameters
    ----------
    ours
        Inodes of what the supervisor itself listens on, now or later.
    """

    def __init__(self, context: StageContext, stage: StagePlan, watch: StageWatch, ours: Collection[int] = ()) -> None:
        self._context = context
        self._watch = watch
        self._stage = stage
        self._due = 0.0
        self._declared = _declared(stage)
        self._ours = ours
        self._known: set[int] = set()

    def check_periodically(self) -> None:
        """Look when the last time was a while ago."""
        if time.monotonic() > self._due:
            self.check()

    def check(self) -> None:
        """Look now."""
        begun = time.monotonic()
        new = [each for each in _listening() if each.inode not in self._known and each.inode not in self._ours]
        now = time.monotonic()
        self._due = now + max(_EVERY_S, _SHARE * (now - begun))
        if new:
            self._judge(new)
            self._known |= {each.inode for each in new}

    def _judge(self, new: Sequence[TcpSocket]) -> None:
        members = {process.pid: process.name for process in self._context.processes.list_members()}
        pids = {each.inode: each.find_holder_pid(members) for each in new}
        parts, still, ports = self._context.processes.list_pids_by_part(), _listening(), read_ephemeral_ports()
        for each in new:
            pid = pids[each.inode]
            shared = self._context.plan.network == "host"  # with processes that are none of the run's
            if not pid and (shared or each not in still):
                continue
            part = next((name for name, found in parts.items() if pid in found), _OTHER)
            if not is_port_allowed(self._declared.get(part, self._declared[_OTHER]), each.port, ports):
                holder = f"{members[pid]} (pid {pid})" if pid else "a process that cannot be seen"
                self._watch.gate.mark_failed(
                    self._watch.gate.outcomes.listens, f"{holder} listens on {each.local_address}"
                )
                raise StageStopped(
                    explain_undeclared_listener(self._stage, part, holder, each.local_address, each.port)
                )


def _listening() -> list[TcpSocket]:
    """Return what waits for connections of others than this machine."""
    return [each for each in list_tcp_sockets() if each.is_listening and not each.is_loopback]


def _declared(stage: StagePlan) -> Mapping[str, tuple[str, ...]]:
    """Return where each part of a stage may listen; a Ray head carries the command out, orphans are anybody's."""
    declared = {service.name: service.listens for service in stage.services} | {"main": stage.listens}
    if stage.ray and stage.ray.service:  # else it is carried out elsewhere
        declared[stage.ray.service] += stage.listens
    return declared | {_OTHER: tuple(word for words in declared.values() for word in words)}


_MOST = 64
"""Connections at once; a browser has six to a server."""
_BLOCK = 1 << 16
_BOUND_S = 10.0


class PortForwarder:
    """Carries connections to the published ports of the services that are ready, in a thread of its own.

    `inodes` are those of the sockets that it listens on.

    Parameters
    ----------
    gateway, address
        From where it is asked, and where it listens; by default as the network of this container says.
    """

    def __init__(self, ports: Mapping[str, int], gateway: str = "", address: str = "") -> None:
        self.inodes: set[int] = set()
        self._ports = ports
        self._gateway = gateway or (read_default_gateway() if ports else "")
        self._address = address or (_address_towards(self._gateway) if self._gateway else "")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._carried = 0

    def forward(self, service: ServicePlan) -> None:
        """Begin with the published ports of a service; one that listens on all addresses needs no help."""
        for name, port in service.ports.items():
            if name in self._ports and self._address:
                with contextlib.suppress(OSError, concurrent.futures.TimeoutError):
                    self._call(self._listen(port))

    def close(self) -> None:
        """Stop listening, and end what is open."""
        if loop := self._loop:
            with contextlib.suppress(OSError, concurrent.futures.TimeoutError):
                self._call(self._end())
            self._loop = None
            loop.call_soon_threadsafe(loop.stop)
            self.inodes.clear()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(self._loop,), name="published", daemon=True).start()
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_BOUND_S)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self._tasks.discard)

    async def _end(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what was closed is let go of

    async def _listen(self, port: int) -> None:
        server = socket.create_server((self._address, port))
        server.setblocking(False)
        self.inodes.add(os.fstat(server.fileno()).st_ino)
        self._begin(self._accept(server, port))

    async def _accept(self, server: socket.socket, port: int) -> None:
        with server:
            while True:
                near, (host, _) = await asyncio.get_running_loop().sock_accept(server)
                if host == self._gateway and self._carried < _MOST:
                    self._carried += 1
                    self._begin(self._carry(near, port))
                else:
                    near.close()

    async def _carry(self, near: socket.socket, port: int) -> None:
        """Carry one connection to loopback, until both sides have said all."""
        try:
            reader, writer = await asyncio.open_connection(sock=near)
            with _closed(writer):
                far_reader, far_writer = await asyncio.open_connection(LOOPBACK, port)
                with _closed(far_writer):
                    await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        except OSError:  # nobody listens any more
            near.close()
        finally:
            self._carried -= 1


@contextlib.contextmanager
def _closed(writer: asyncio.StreamWriter) -> Iterator[None]:
    """Close a connection at the end of the block, at once when that is torn off."""
    try:
        yield
    except asyncio.CancelledError:
        writer.transport.abort()
        raise
    finally:
        writer.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while block := await source.read(_BLOCK):
            sink.write(block)
            await sink.drain()
    with contextlib.suppress(OSError):
        sink.write_eof()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Turn the loop until it is stopped."""
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.close()


def _address_towards(host: str) -> str:
    """Return this machine's address on the network of `host`; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
