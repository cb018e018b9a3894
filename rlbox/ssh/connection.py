"""One connection to a machine, by the system's own ssh: its configuration, keys and jumps are the user's."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rlbox.errors import NodeError
from rlbox.machine.act.command import PIPE, Started, run_command, run_in_foreground, start_command
from rlbox.values import Command, Outcome

_CONNECT_S, _ASK_S, _AGAIN_S = 15, 120.0, 5.0
BROKEN = 255
"""ssh's own exit code for a connection that broke, or never was."""
_OPTIONS = (
    "BatchMode=yes",
    f"ConnectTimeout={_CONNECT_S}",
    "ServerAliveInterval=10",
    "ServerAliveCountMax=3",
    "StrictHostKeyChecking=accept-new",
)
_READY = "ready"


class ConnectionLost(NodeError):
    """ssh cannot connect, or the connection broke."""


@dataclass(frozen=True, kw_only=True)
class SshAddress:
    """Whom ssh is asked for: `host` may be a name of its configuration, `user` empty and `port` 0 its own choice.

    `known_hosts` keeps the key that the machine showed the first time; another one later is refused.
    """

    host: str
    user: str
    port: int
    known_hosts: Path

    @property
    def name(self) -> str:
        """As ssh takes it."""
        return f"{self.user}@{self.host}" if self.user else self.host

    def argv(self) -> tuple[str, ...]:
        """The beginning of every call of ssh."""
        told = (*_OPTIONS, f"UserKnownHostsFile={self.known_hosts}")
        port = ("-p", str(self.port)) if self.port else ()
        return ("ssh", *(word for option in told for word in ("-o", option)), *port)


class Connection:
    """The connection that a block holds; each command is a session of it, and it ends with this process.

    Parameters
    ----------
    patience_s
        How long a machine that starts may refuse; it is asked again every few seconds.

    Raises
    ------
    ConnectionLost
        ssh cannot connect without a question, or the connection broke; ssh's own words are quoted.
    """

    def __init__(self, address: SshAddress, patience_s: float = 0.0) -> None:
        self.address, self._patience_s = address, patience_s
        self._folder = Path(tempfile.mkdtemp(prefix="rlbox-ssh-"))
        self._master: Started | None = None

    @property
    def name(self) -> str:
        """Whom it leads to, for messages."""
        return self.address.name

    def __enter__(self) -> Connection:
        end = time.monotonic() + self._patience_s
        while refused := self._open():
            if time.monotonic() >= end:
                self._end()
                raise self._failed(refused)
            time.sleep(_AGAIN_S)
        return self

    def __exit__(self, *failure: object) -> None:
        self._end()

    def _open(self) -> str:
        """Start the connection; return ssh's last words when it was refused, else nothing."""
        self.address.known_hosts.parent.mkdir(parents=True, exist_ok=True)
        master = (*self.address.argv(), "-M", "-S", self._socket, "-T", "--", self.address.name)
        errors = self._folder / "errors"
        try:
            with errors.open("wb") as words:
                command = Command(argv=(*master, f"echo {_READY}; exec cat >/dev/null"))
                self._master = start_command(command, stdin=PIPE, stdout=PIPE, stderr=words)
        except OSError as error:
            self._end()
            raise NodeError("there is no ssh on PATH", next_step="install the OpenSSH client") from error
        line = self._master.stdout.readline() if self._master.stdout else b""
        if line.decode("utf-8", "replace").strip() != _READY:
            self._master.wait()
            said = errors.read_text("utf-8", "replace").strip().splitlines()
            return said[-1] if said else "ssh ended without a word"
        return ""

    def ask(self, command: str, stdin: str = "", *, timeout_s: float = _ASK_S) -> Outcome:
        """Run a shell command there to its end; its exit code is its own."""
        outcome = run_command(Command(argv=self.words(command), timeout_s=timeout_s), stdin)
        if outcome.exit_code == BROKEN:
            raise self._failed(outcome.stderr.strip().splitlines()[-1] if outcome.stderr.strip() else "it broke")
        return outcome

    def need(self, command: str, what: str, stdin: str = "", *, timeout_s: float = _ASK_S) -> str:
        """Run a shell command there and return what it printed; `NodeError` when it fails, with its last words."""
        outcome = self.ask(command, stdin, timeout_s=timeout_s)
        if outcome.ok:
            return outcome.stdout
        said = (outcome.stderr or outcome.stdout).strip().splitlines()
        why = said[-1] if said else f"exit code {outcome.exit_code}"
        there = f"ssh{self._port} {self.address.name}"
        raise NodeError(
            f"{what}: {why}", where=self.address.name, next_step=f"look there with `{there}`, and try again"
        )

    def start(self, command: str, *, stdin: int, stdout: int) -> Started:
        """Start a shell command there whose streams are the caller's to read and write."""
        return start_command(Command(argv=self.words(command)), stdin=stdin, stdout=stdout, stderr=PIPE)

    def words(self, command: str) -> tuple[str, ...]:
        """Return the call of ssh that runs a shell command over this connection."""
        return (
            *self.address.argv(),
            "-S",
            self._socket,
            "-o",
            "ControlMaster=no",
            "-T",
            "--",
            self.address.name,
            command,
        )

    @property
    def _port(self) -> str:
        return f" -p {self.address.port}" if self.address.port else ""

    @property
    def _socket(self) -> str:
        return str(self._folder / "s")

    def _failed(self, said: str) -> ConnectionLost:
        return ConnectionLost(
            f"ssh to {self.address.name} failed: {said}",
            next_step=f"make `ssh -oBatchMode=yes{self._port} {self.address.name} true` work: key, known host, network",
        )

    def _end(self) -> None:
        if self._master:
            self._master.kill()
            self._master.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def open_terminal(address: SshAddress, command: str) -> int:
    """Give this terminal to a shell there, or to one command, and return its exit code."""
    argv = (*address.argv(), "--", address.name, *((command,) if command else ()))
    return run_in_foreground(Command(argv=argv))
