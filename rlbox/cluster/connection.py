"""Nodes of a cluster over ssh, or this machine: calls of the node script, its streams, its engine, the nodes' lock."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from rlbox.amounts import exact_duration_text
from rlbox.cluster.node.facts import MachineFacts
from rlbox.cluster.plan import LOCAL
from rlbox.errors import EngineError, LockHeld, NodeError, RlboxError, SpecError
from rlbox.findings import Finding
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.ssh.connection import (
    CONNECTION_LOST_CODE,
    SshAddress,
    SshConnection,
    SshConnectionFailed,
    explain_ssh_error,
)
from rlbox.system.command import DEVNULL, PIPE, ProcessHandle, start_command
from rlbox.target.target import ClusterNode
from rlbox.values import Command

if TYPE_CHECKING:
    from rlbox.engine.docker import DockerEngine

T = TypeVar("T")

_CALL_S = 60.0
_CONNECTIONS_AT_ONCE = 8
"""An sshd takes 10 that have not logged in; all nodes may be behind one jump host."""
_OPTIONS = ("ConnectTimeout=30", "ServerAliveCountMax=6")
"""A node that is slow is no dead one."""

_MARK = b"rlbox:"
_BOOT = "import sys,json;exec(json.loads(sys.stdin.buffer.readline().decode()))"
_SCRIPT = ("facts.py", "calls.py")
_slots = threading.Semaphore(_CONNECTIONS_AT_ONCE)


@cache
def _node_script() -> bytes:
    """Return the script that a node's python3 runs as one line: its modules without their imports of rlbox."""
    folder = Path(__file__).with_name("node")
    text = "\n".join((folder / name).read_text("utf-8") for name in _SCRIPT)
    text = re.sub(r"^from rlbox\.\S+ import (\([^)]*\)|.*)$", "", text, flags=re.M)
    return json.dumps(text).encode() + b"\n"


class UnreachableNode(NodeError):
    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.where}: {finding.title}: {finding.seen}", next_step=finding.remedy)
        self.finding = finding


class NodeStream:
    """A call that goes on: it yields what the node reports until that ends; `UnreachableNode` if it breaks."""

    def __init__(self, node: Node, process: ProcessHandle) -> None:
        self._node, self._process, self._closed = node, process, False

    def __iter__(self) -> Iterator[Any]:
        for line in self._process.stdout or ():
            if line.startswith(_MARK):
                yield self._node.parse_answer(line)
        if self._process.wait() and not self._closed:
            raise self._node.connection_lost_without_cause()

    def next_or_raise(self) -> Any:
        for row in self:
            return row
        raise self._node.connection_lost_without_cause()

    def end_input(self) -> None:
        """Have it come to its end; what it still has to report is yielded."""
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin:
                self._process.stdin.close()

    def close(self) -> None:
        self._closed = True
        self.end_input()
        self._process.kill()
        self._process.wait()


class Node:
    """One node, from `connect` to `close`; several threads may call it at a time."""

    machine: MachineFacts

    def __init__(self, spec: ClusterNode) -> None:
        self.spec, self.name = spec, spec.name
        self._ssh: SshConnection | None = None
        self._engine_lock, self._engine_address = threading.Lock(), ""

    def connect(self) -> None:
        if self.name != LOCAL:
            connection = SshConnection(SshAddress(host=self.name), o_options=_OPTIONS)
            try:
                with _slots:
                    self._ssh = connection.__enter__()
            except SshConnectionFailed as error:
                raise UnreachableNode(explain_ssh_error(self.name, error.output)) from error
        try:
            self.machine = MachineFacts(*self.call("read_machine_facts"))
        except UnreachableNode:
            raise
        except NodeError as error:
            raise UnreachableNode(explain_ssh_error(self.name, error.what)) from error

    def close(self) -> None:
        if self._ssh:
            self._ssh.__exit__()

    @property
    def is_lost(self) -> bool:
        return self._ssh is not None and not self._ssh.is_open

    def connection_lost_without_cause(self) -> UnreachableNode:
        title, seen, remedy = _("the connection broke"), _("that ends nothing there"), _("the same command again")
        return UnreachableNode(Finding(id="connection-lost", title=title, seen=seen, where=self.name, remedy=remedy))

    # ---- call

    def _argv(self, command: str) -> tuple[str, ...]:
        return self._ssh.to_argv(command) if self._ssh else ("sh", "-c", command)

    def _start(self, name: str, arguments: Mapping[str, Any]) -> ProcessHandle:
        python = "python3" if self._ssh else sys.executable
        command = Command(argv=self._argv(f'{python} -I -S -c "{_BOOT}" rlbox-node'))
        process = start_command(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        with contextlib.suppress(OSError):
            if process.stdin:
                process.stdin.write(_node_script() + json.dumps([name, arguments]).encode() + b"\n")
                process.stdin.flush()
        return process

    def call(self, function: str, timeout_s: float = _CALL_S, /, **arguments: Any) -> Any:
        """Return what a function of the node's script returns; `NodeError` where it fails, or not in time."""
        process = self._start(function, arguments)
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise NodeError(
                _("node {name} has not answered for {timeout_s}").format(
                    name=self.name, timeout_s=exact_duration_text(timeout_s)
                ),
                where=self.name,
            ) from None
        for line in output.splitlines():
            if line.startswith(_MARK):
                return self.parse_answer(line)
        if process.returncode == CONNECTION_LOST_CODE:
            raise self.connection_lost_without_cause()
        lines = errors.decode("utf-8", "replace").strip().splitlines() or ["no answer"]
        raise NodeError(_("node {name}: {failed}").format(name=self.name, failed=lines[-1]))

    def parse_answer(self, line: bytes) -> Any:
        row = parse_untrusted_json(line[len(_MARK) :])
        if "error" in row:
            raise NodeError(
                _("node {name}: {failed}").format(name=self.name, failed=row["error"]),
                next_step=_("the same command again"),
            )
        return row["answer"]

    def stream(self, function: str, **arguments: Any) -> NodeStream:
        process = self._start(function, arguments)
        if process.stderr:
            threading.Thread(target=process.stderr.read, daemon=True).start()
        return NodeStream(self, process)

    def run_shell(self, command: str, stdin: int | IO[bytes] = DEVNULL) -> str:
        process = start_command(Command(argv=self._argv(command)), stdin=stdin, stdout=PIPE, stderr=PIPE)
        output, errors = (stream.decode("utf-8", "replace") for stream in process.communicate())
        if process.returncode:
            lines = errors.strip().splitlines() or [f"exit code {process.returncode}"]
            raise NodeError(_("node {name}: {failed}").format(name=self.name, failed=lines[-1]), where=self.name)
        return output

    # ---- its engine

    @property
    def engine_unix_url_forwarding_if_remote(self) -> str:
        """Where this machine reaches the node's engine: its own socket, or one that ssh forwards."""
        with self._engine_lock:
            if not self._engine_address:
                path = self.machine.engine_socket
                if self._ssh:
                    local = str(self._ssh.local_temp_directory / "engine")
                    self._ssh.forward_socket(local, path)
                    path = local
                self._engine_address = f"unix://{path}"
            return self._engine_address

    def engine(self) -> DockerEngine:
        from rlbox.engine.docker import DockerEngine

        try:
            return DockerEngine.connect(self.engine_unix_url_forwarding_if_remote)
        except EngineError as error:
            output = self._ssh.read_master_stderr_or_empty() if self._ssh else ""
            if "prohibited" in output:
                raise UnreachableNode(explain_ssh_error(self.name, output)) from error
            raise EngineError(error.what, where=self.name, next_step=error.next_step) from error


# ---- all of them


class NodePool:
    def __init__(self, nodes: Mapping[str, Node], unreached: Sequence[Finding] = ()) -> None:
        self.nodes, self.unreached = dict(nodes), tuple(unreached)

    def select_skipping_unconnected(self, names: Sequence[str]) -> NodePool:
        return NodePool({name: self.nodes[name] for name in names if name in self.nodes})

    def map(self, function: Callable[[Node], T]) -> dict[str, T]:
        """Return what each node gave; the first error is raised when all are through."""
        results, errors = self.try_map(function)
        if errors:
            raise next(iter(errors.values()))
        return results

    def try_map(self, function: Callable[[Node], T]) -> tuple[dict[str, T], dict[str, RlboxError]]:
        results: dict[str, T] = {}
        errors: dict[str, RlboxError] = {}
        with ThreadPoolExecutor(max(1, len(self.nodes))) as pool:
            futures = {name: pool.submit(function, node) for name, node in self.nodes.items()}
        for name, future in futures.items():
            try:
                results[name] = future.result()
            except RlboxError as error:
                errors[name] = error
        return results, errors

    def format_unreached(self) -> list[str]:
        return [f"{finding.where}: {finding.title}: {finding.seen}" for finding in self.unreached]


@contextmanager
def connect_nodes(specs: Sequence[ClusterNode]) -> Iterator[NodePool]:
    """Connect to all nodes at once, and hold the connections while the block runs; two names of one are refused."""
    nodes = {spec.name: Node(spec) for spec in specs}
    try:
        __, errors = NodePool(nodes).try_map(Node.connect)
        other = next((error for error in errors.values() if not isinstance(error, UnreachableNode)), None)
        if other:
            raise other
        connected = {name: node for name, node in nodes.items() if name not in errors}
        names: dict[str, str] = {}
        for name, node in connected.items():
            first = names.setdefault(node.machine.identity_until_restart, name)
            if first != name:
                raise SpecError(
                    _("nodes {one} and {other} are one machine").format(one=first, other=name),
                    next_step=_("name each machine once, in --nodes or cluster.nodes"),
                )
        yield NodePool(connected, [one.finding for one in errors.values() if isinstance(one, UnreachableNode)])
    finally:
        for node in nodes.values():
            node.close()


@contextmanager
def lock_nodes(pool: NodePool) -> Iterator[None]:
    """Hold the lock of every node while the block runs: one after the other, in the same order for everybody."""
    streams: list[NodeStream] = []
    try:
        for node in sorted(pool.nodes.values(), key=lambda node: node.machine.identity_until_restart):
            streams.append(node.stream("hold_lock"))
            if not streams[-1].next_or_raise():
                raise LockHeld(
                    _("another call changes clusters on node {node}").format(node=node.name),
                    where=node.name,
                    next_step=_("the same command again, once that has ended"),
                )
        yield
    finally:
        for stream in streams:
            stream.end_input()
            with contextlib.suppress(NodeError):
                list(stream)
