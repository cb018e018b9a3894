"""The connection to a node, and to all nodes of a cluster."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlbox.amounts import limit_text
from rlbox.cluster.node_program import BOOT, first_row, node_program
from rlbox.cluster.nodes import NodeSpec
from rlbox.cluster.ssh_route import BUSY, Route, Starts, explain_ssh, route_to
from rlbox.errors import NodeError
from rlbox.findings import Finding
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.command import PIPE, ProcessHandle, start_command
from rlbox.system.file_lock import try_lock
from rlbox.values import Command

if TYPE_CHECKING:
    from rlbox.engine.docker import DockerEngine


_PREFIX = "rlbox-node-"


class ConnectionFolder:
    """A folder that is this process's until `remove`: the kernel holds a lock on it, which goes with the process."""

    def __init__(self) -> None:
        sweep()
        self._handle = -1
        while self._handle < 0:
            self._begin()

    def _begin(self) -> None:
        """Make and lock one; not where another process took it for one left behind before it was locked."""
        self._own = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self.path = self._own / "n"
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(self._own, os.O_RDONLY | os.O_DIRECTORY)
            if try_lock(handle):
                with contextlib.suppress(FileNotFoundError):
                    self.path.mkdir(mode=0o700)
                    self._handle = handle
                    return
            os.close(handle)

    def remove(self) -> None:
        """Remove it with what is in it; again is no error."""
        shutil.rmtree(self._own, ignore_errors=True)
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def sweep() -> None:
    """Remove folders of this user's whose process is gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(handle).st_uid == os.getuid() and try_lock(handle):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


PATIENCE_S = 30.0
"""How long a node may take to answer; one that is slow is no dead one."""

SILENT_S = 10.0
"""A node's program says something every second; for how long nothing is heard of it before that is told."""

ASK_S = 60.0
_BEAT_S, _END_S, _LEFT_S = 5.0, 4.0, 0.3
_AGAIN_S = (0.5, 1.0, 2.0, 4.0)
_OPTIONS = (
    "BatchMode=yes",
    f"ConnectTimeout={PATIENCE_S:.0f}",
    "ServerAliveInterval=10",
    "ServerAliveCountMax=6",
    "ControlMaster=no",
    "ControlPath=none",
    "ExitOnForwardFailure=yes",
    "StreamLocalBindMask=0177",
)


class UnreachableNode(NodeError):
    """A node that could not be reached, or no longer; `finding` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.where}: {finding.title}: {finding.seen}", next_step=finding.remedy)
        self.finding = finding


class RemoteStream:
    """Something that goes on at a node; iterated, it gives what the node tells of it, until that or the node ends."""

    def __init__(self, link: NodeConnection, number: int, answers: queue.Queue[dict[str, Any]]) -> None:
        self._link, self._number, self._answers = link, number, answers

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while "part" in (row := self._answers.get()):
            yield row["part"]
        self._link.finish(self._number, row)

    def first(self) -> dict[str, Any]:
        """Return the first thing that it tells; `NodeError` when it fails before."""
        return next(iter(self))

    def end(self) -> None:
        """Have it end; it tells what it has to, and then no more."""
        self._link.tell({"do": "end", "of": self._number})


class NodeConnection:
    """The connection to one node, from `open` to `close`; several threads may ask at a time."""

    def __init__(self, options: NodeSpec, starts: Starts) -> None:
        self.options, self.name = options, options.name
        self.beat_at = 0.0
        self.facts: dict[str, Any] = {}
        self._starts, self._numbers = starts, itertools.count(1)
        self._own_folder = ConnectionFolder()
        self._folder = self._own_folder.path
        self._process: ProcessHandle | None = None
        self._waits: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._listening: threading.Thread | None = None
        self.route = Route(host=options.name)

    # ---- begin and end

    def open(self) -> None:
        """Connect, again where an sshd had too many to deal with; `Unreached` says why it could not be."""
        self.route = Route(host="local") if self.options.local else route_to(self.name)
        until = time.monotonic() + PATIENCE_S
        for pause in (*_AGAIN_S, 0.0):
            with self._starts.at(self.route):
                words = self._start()
            if not words:
                self._listening = threading.Thread(target=self._listen, name=f"node {self.name}", daemon=True)
                self._listening.start()
                threading.Thread(target=self._keep_alive, name=f"beats to {self.name}", daemon=True).start()
                return
            if not pause or not BUSY.search(words) or time.monotonic() + pause > until:
                break
            time.sleep(pause)
        self.close()
        raise UnreachableNode(explain_ssh(self.name, self.route.host, self.route.jump, words))

    def _argv(self, there: str) -> tuple[str, ...]:
        if self.options.local:
            return (sys.executable, "-I", "-S", "-c", BOOT, "rlbox-node")
        words = [word for option in _OPTIONS for word in ("-o", option)]
        words += ["-L", f"{self._folder}/engine:{there}/engine", "-L", f"{self._folder}/door:{there}/door"]
        return ("ssh", "-T", *words, "--", self.name, f'python3 -I -S -c "{BOOT}" rlbox-node')

    def _start(self) -> str:
        """Start the process and hear who the node is; return what ssh said when it could not."""
        there = str(self._folder) if self.options.local else f"/tmp/rlbox-{secrets.token_hex(8)}"  # noqa: S108
        if self.options.local:
            shutil.rmtree(self._folder, ignore_errors=True)
        with tempfile.TemporaryFile() as words:
            try:
                self._process = start_command(Command(argv=self._argv(there)), stdin=PIPE, stdout=PIPE, stderr=words)
            except FileNotFoundError as error:
                raise NodeError(_("there is no ssh on PATH"), next_step=_("install the OpenSSH client")) from error
            first = self._greet(there)
            if first is not None:
                self.facts, self.beat_at = first["node"], time.monotonic()
                return ""
            self._end()
            words.seek(0)
            return words.read().decode("utf-8", "replace").strip() or "ssh ended without a word"

    def _greet(self, there: str) -> dict[str, Any] | None:
        """Send the program and return its first row; what a shell's own start prints before it is passed over."""
        if not (self._process and self._process.stdin and self._process.stdout):
            return None
        try:
            self._process.stdin.write(node_program() + first_row(there, self.options.data))
            self._process.stdin.flush()
        except OSError:  # it has ended: its words say why
            return None
        for line in self._process.stdout:
            if line.startswith(b'{"rlbox": 1'):
                return dict(parse_json(line))
        return None

    def close(self) -> None:
        """End the connection; the node's program undoes what was begun and not finished there."""
        self._closed.set()
        self._end()
        self._own_folder.remove()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.stdin:
                process.stdin.close()
            if self._listening:  # the node's program has ended; ssh waits on, for what still goes through its sockets
                self._listening.join(_END_S)
            process.wait(_LEFT_S if self._listening else _END_S)
        except Exception:  # it hangs, or the pipe is broken
            process.kill()
            process.wait()

    # ---- ask

    @property
    def lost(self) -> bool:
        """Whether the connection is no more."""
        return self._closed.is_set()

    @property
    def heard(self) -> bool:
        """Whether the node's program has said something lately."""
        return not self.lost and self.silent_s() < SILENT_S

    def silent_s(self) -> float:
        """Return for how long nothing has been heard of the node's program, which says something every second."""
        return time.monotonic() - self.beat_at

    def ask(self, do: str, timeout_s: float = ASK_S, **args: Any) -> dict[str, Any]:
        """Return what the node's program answers; `NodeError` when it fails, does not answer, or is gone."""
        number, answers = self._begin(do, args)
        try:
            row = answers.get(timeout=timeout_s)
        except queue.Empty:
            raise NodeError(
                _("node {name} has not answered for {timeout_s}").format(
                    name=self.name, timeout_s=limit_text(timeout_s)
                ),
                where=do,
            ) from None
        finally:
            self._waits.pop(number, None)
        return self._done(row)

    def start(self, do: str, **args: Any) -> RemoteStream:
        """Start something that goes on at the node, and tells of itself."""
        number, answers = self._begin(do, args)
        return RemoteStream(self, number, answers)

    def _begin(self, do: str, args: dict[str, Any]) -> tuple[int, queue.Queue[dict[str, Any]]]:
        number, answers = next(self._numbers), queue.Queue[dict[str, Any]]()
        self._waits[number] = answers
        self.tell({"id": number, "do": do, **args})
        if self.lost:
            answers.put({"lost": True})
        return number, answers

    def _done(self, row: dict[str, Any]) -> dict[str, Any]:
        if "done" in row:
            return dict(row["done"])
        if "failed" in row:
            raise NodeError(
                _("node {name}: {failed}").format(name=self.name, failed=row["failed"]),
                next_step=_("the same command again"),
            )
        raise self.gone()

    def finish(self, number: int, row: dict[str, Any]) -> dict[str, Any]:
        """Return the last answer to a question; `NodeError` when it failed."""
        self._waits.pop(number, None)
        return self._done(row)

    def gone(self) -> UnreachableNode:
        """Return the error for a connection that ended."""
        return UnreachableNode(
            Finding(
                id="connection-lost",
                title=_("the connection broke"),
                seen=_("that ends nothing there"),
                where=self.name,
                remedy=_("the same command again"),
            )
        )

    def tell(self, row: dict[str, Any], blob: bytes = b"") -> None:
        """Send a row, and bytes behind it."""
        process = self._process
        if process is None or process.stdin is None:
            return
        try:
            with self._lock:
                process.stdin.write(json.dumps(row).encode() + b"\n" + blob)
                process.stdin.flush()
        except (OSError, ValueError):
            self._lose()

    def _listen(self) -> None:
        process = self._process
        for line in process.stdout if process and process.stdout else ():
            self.beat_at = time.monotonic()
            try:
                row = parse_json(line)
            except ValueError:
                continue
            if (answers := self._waits.get(row.get("id", 0))) is not None:
                answers.put(row)
        self._lose()

    def _lose(self) -> None:
        self._closed.set()
        for answers in list(self._waits.values()):
            answers.put({"lost": True})

    def _keep_alive(self) -> None:
        while not self._closed.wait(_BEAT_S):
            self.tell({"do": "beat"})

    # ---- its engine, and the door to its dashboard

    def door(self, port: int) -> str:
        """Return a socket of this machine's that leads to a port of the node's loopback."""
        self.ask("door", port=port)
        return str(self._folder / "door")

    @property
    def engine_address(self) -> str:
        """Where this machine reaches the node's engine."""
        return f"unix://{self._folder / 'engine'}"

    def engine(self) -> DockerEngine:
        """Return the node's engine."""
        from rlbox.engine.docker import DockerEngine

        return DockerEngine.connect(self.engine_address)
