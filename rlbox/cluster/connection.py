"""A node of a cluster over ssh, or this machine: calls of the node script, its streams, its engine."""

from __future__ import annotations

import base64
import contextlib
import json
import queue
import re
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rlbox.amounts import exact_duration_text
from rlbox.cluster.nodes import NodeSpec
from rlbox.errors import EngineError, NodeError
from rlbox.findings import Finding
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.ssh.connection import CONNECTION_LOST_CODE, ConnectionLost, SshAddress, SshConnection
from rlbox.ssh.errors import SshRoute, explain_ssh_error, read_ssh_route
from rlbox.system.command import PIPE, ProcessHandle, start_command
from rlbox.values import Command

if TYPE_CHECKING:
    from rlbox.engine.docker import DockerEngine

CALL_S = 60.0
_CONNECTIONS_AT_ONCE = 8
"""An sshd takes 10 that have not logged in; all nodes may be behind one jump host."""
_OPTIONS = ("ConnectTimeout=30", "ServerAliveCountMax=6")
"""A node that is slow is no dead one."""

_MARK = b"rlbox:"
_BOOT = "import sys,zlib,base64;exec(zlib.decompress(base64.b64decode(sys.stdin.buffer.readline())))"
_SCRIPT = ("facts.py", "network.py", "ray.py", "main.py")
_slots = threading.Semaphore(_CONNECTIONS_AT_ONCE)


@cache
def _node_script() -> bytes:
    """Return the script that a node's python3 runs as one line: its modules without their imports of rlbox."""
    folder = Path(__file__).with_name("node")
    text = "\n".join((folder / name).read_text("utf-8") for name in _SCRIPT)
    text = re.sub(r"^from rlbox\.\S+ import (\([^)]*\)|.*)$", "", text, flags=re.M)
    return base64.b64encode(zlib.compress(text.encode(), 9)) + b"\n"


class UnreachableNode(NodeError):
    """A node that cannot be reached, or no longer; `finding` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.where}: {finding.title}: {finding.seen}", next_step=finding.remedy)
        self.finding = finding


class NodeStream:
    """A call that goes on: it yields what the node reports until that ends; `UnreachableNode` if it breaks."""

    def __init__(self, node: Node, process: ProcessHandle, *, raw: bool = False) -> None:
        self._node, self._process, self._raw, self._closed = node, process, raw, False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self._process.stdout or ():
            if self._raw:
                yield {"line": line.decode("utf-8", "replace").rstrip("\n")}
            elif line.startswith(_MARK):
                yield self._node.require_success(parse_json(line[len(_MARK) :]))
        if self._process.wait() and not self._closed and not self._raw:
            raise self._node.create_connection_lost_error()

    def next(self) -> dict[str, Any]:
        """Return the next report; `UnreachableNode` where the connection broke before."""
        for row in self:
            return row
        raise self._node.create_connection_lost_error()

    def send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin:
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()

    def end_input(self) -> None:
        """Have it come to its end; what it still has to report is yielded."""
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin:
                self._process.stdin.close()

    def close(self) -> None:
        """End it at once."""
        self._closed = True
        self.end_input()
        self._process.kill()
        self._process.wait()


class Node:
    """One node, from `connect_and_identify` to `close`; several threads may call it at a time."""

    def __init__(self, spec: NodeSpec) -> None:
        self.spec, self.name = spec, spec.name
        self.machine: dict[str, Any] = {}
        self._ssh: SshConnection | None = None
        self._engine_lock, self._engine_address = threading.Lock(), ""

    # ---- connect

    def connect_and_identify(self) -> None:
        """Connect and ask who the machine is; `UnreachableNode` says why that does not go."""
        if not self.spec.is_local:
            self._connect()
        try:
            self.machine = self.call("identify")
        except NodeError as error:
            self.close()
            if isinstance(error, UnreachableNode):
                raise
            raise UnreachableNode(explain_ssh_error(self.name, SshRoute(self.name, ""), error.what)) from error

    def _connect(self) -> None:
        connection = SshConnection(SshAddress(host=self.name), options=_OPTIONS)
        try:
            with _slots:
                self._ssh = connection.__enter__()
        except ConnectionLost as error:
            raise UnreachableNode(explain_ssh_error(self.name, read_ssh_route(self.name), error.output)) from error

    def close(self) -> None:
        if self._ssh:
            self._ssh.__exit__()

    @property
    def is_lost(self) -> bool:
        """Whether the connection broke."""
        return self._ssh is not None and not self._ssh.is_open

    def create_connection_lost_error(self) -> UnreachableNode:
        return UnreachableNode(
            Finding(
                id="connection-lost",
                title=_("the connection broke"),
                seen=_("that ends nothing there"),
                where=self.name,
                remedy=_("the same command again"),
            )
        )

    # ---- call

    def _argv(self, command: str) -> tuple[str, ...]:
        return self._ssh.to_argv(command) if self._ssh else ("sh", "-c", command)

    def _start(self, name: str, arguments: dict[str, Any]) -> ProcessHandle:
        python = "python3" if self._ssh else sys.executable
        command = Command(argv=self._argv(f'{python} -I -S -c "{_BOOT}" rlbox-node'))
        process = start_command(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        with contextlib.suppress(OSError):
            if process.stdin:
                process.stdin.write(_node_script() + json.dumps({"call": name, **arguments}).encode() + b"\n")
                process.stdin.flush()
        return process

    def call(self, name: str, timeout_s: float = CALL_S, **arguments: Any) -> dict[str, Any]:
        """Return what the node's script answers; `NodeError` where it fails or does not answer in time."""
        process = self._start(name, arguments)
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
                return self.require_success(parse_json(line[len(_MARK) :]))
        if process.returncode == CONNECTION_LOST_CODE:
            raise self.create_connection_lost_error()
        lines = errors.decode("utf-8", "replace").strip().splitlines() or ["no answer"]
        raise NodeError(_("node {name}: {failed}").format(name=self.name, failed=lines[-1]))

    def require_success(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return an answer; `NodeError` where it is an error."""
        if "error" in row:
            raise NodeError(
                _("node {name}: {failed}").format(name=self.name, failed=row["error"]),
                next_step=_("the same command again"),
            )
        return row

    def stream(self, name: str, *, as_text_lines: bool = False, **arguments: Any) -> NodeStream:
        """Start a call that goes on; `as_text_lines`: its lines are those of the program that it becomes."""
        process = self._start(name, arguments)
        if process.stderr:
            threading.Thread(target=process.stderr.read, daemon=True).start()
        return NodeStream(self, process, raw=as_text_lines)

    def run_shell(self, command: str, stdin: IO[bytes]) -> None:
        """Run a shell command there with a file of this machine as its standard input; `NodeError` where it fails."""
        with tempfile.TemporaryFile() as errors:
            code = start_command(Command(argv=self._argv(command)), stdin=stdin, stdout=errors, stderr=errors).wait()
            errors.seek(0)
            lines = errors.read().decode("utf-8", "replace").strip().splitlines() or [f"exit code {code}"]
        if code:
            raise NodeError(_("node {name}: {failed}").format(name=self.name, failed=lines[-1]), where=self.name)

    # ---- its engine

    @property
    def local_engine_url(self) -> str:
        """Where this machine reaches the node's engine: its own socket, or one that ssh forwards."""
        with self._engine_lock:
            if not self._engine_address:
                socket = str(self.machine["engine_socket"])
                if self._ssh:
                    local = self._ssh.local_temp_directory / "engine"
                    self._ssh.forward(str(local), socket)
                    socket = str(local)
                self._engine_address = f"unix://{socket}"
            return self._engine_address

    def engine(self) -> DockerEngine:
        from rlbox.engine.docker import DockerEngine

        try:
            return DockerEngine.connect(self.local_engine_url)
        except EngineError as error:
            output = self._ssh.read_errors() if self._ssh else ""
            if "prohibited" in output:
                raise UnreachableNode(explain_ssh_error(self.name, SshRoute(self.name, ""), output)) from error
            raise EngineError(error.what, where=self.name, next_step=error.next_step) from error


def read_streams(streams: dict[str, NodeStream]) -> queue.Queue[tuple[str, dict[str, Any] | NodeError | None]]:
    """Return a queue of what nodes report, each with its name; None: it ended, an error: the connection broke."""
    reports: queue.Queue[tuple[str, dict[str, Any] | NodeError | None]] = queue.Queue()

    def read(name: str, stream: NodeStream) -> None:
        try:
            for row in stream:
                reports.put((name, row))
            reports.put((name, None))
        except NodeError as error:
            reports.put((name, error))

    for name, stream in streams.items():
        threading.Thread(target=read, args=(name, stream), name=f"reports of {name}", daemon=True).start()
    return reports
