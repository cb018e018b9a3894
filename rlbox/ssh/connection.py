"""Connections by the system's own ssh, so that its configuration, keys and jump hosts are the user's."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from rlbox.errors import MachineError
from rlbox.findings import Finding
from rlbox.i18n import _
from rlbox.system.command import PIPE, ProcessHandle, run_command, run_in_foreground, start_command
from rlbox.values import Command, Outcome

CONNECTION_LOST_CODE = 255
"""ssh's own exit code for a connection that broke, or never was."""

_COMMAND_S = 120.0
_RETRY_PAUSE_S = 5.0
# BatchMode: a question for a password would wait for ever where nobody sees it.
_OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=15",
    "ServerAliveInterval=10",
    "ServerAliveCountMax=3",
    "ControlPersist=no",  # a master in the background would outlive this process
)
_READY = "ready"
_PREFIX, _SOCKET, _ERRORS = "rlbox-ssh-", "s", "errors"


class SshConnectionFailed(MachineError):
    """ssh cannot connect, or the connection broke; `output` is all that ssh wrote."""

    def __init__(self, what: str, *, where: str = "", next_step: str = "", output: str = "") -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.output = output


class SshClientMissing(MachineError):
    """This machine has no ssh."""


@dataclass(frozen=True, kw_only=True)
class SshAddress:
    """`host` may be a name of ssh's configuration; `user` empty and `port` 0 leave the choice to it.

    `known_hosts` keeps the key that the host showed the first time, and a different one later is refused. None: the
    user's own file and rules.
    """

    host: str
    user: str = ""
    port: int = 0
    known_hosts: Path | None = None

    @property
    def ssh_destination(self) -> str:
        return f"{self.user}@{self.host}" if self.user else self.host

    @property
    def unquoted_ssh_command(self) -> str:
        return f"ssh -p {self.port} {self.ssh_destination}" if self.port else f"ssh {self.ssh_destination}"

    def to_argv_before_destination(self, *o_options: str) -> tuple[str, ...]:
        """Return the start of an ssh command line: everything before the login; `options`, as `-o` takes them, win."""
        if self.known_hosts:
            o_options = (*o_options, "StrictHostKeyChecking=accept-new", f"UserKnownHostsFile={self.known_hosts}")
        port = ("-p", str(self.port)) if self.port else ()
        return ("ssh", *(arg for option in (*o_options, *_OPTIONS) for arg in ("-o", option)), *port)


def parse_ssh_url(url: str) -> SshAddress:
    """Return the address in `ssh://[USER@]HOST[:PORT][/PATH]`; `ValueError` without a host, or with a wrong port."""
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError(_("it names no host"))
    return SshAddress(host=parts.hostname, user=parts.username or "", port=parts.port or 0)


class SshConnection:
    """One master connection while the `with` block runs, of which every command is a session.

    `retry_s`: how long a machine that is still booting may refuse. `SshConnectionFailed` quotes ssh.
    """

    def __init__(self, address: SshAddress, retry_s: float = 0.0, o_options: tuple[str, ...] = ()) -> None:
        self.address, self._retry_s, self._options = address, retry_s, o_options
        self._directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        self._socket = str(self._directory / _SOCKET)
        self._master: ProcessHandle | None = None

    @property
    def ssh_destination(self) -> str:
        return self.address.ssh_destination

    @property
    def local_temp_directory(self) -> Path:
        return self._directory

    @property
    def is_open(self) -> bool:
        return self._master is not None and self._master.poll() is None

    def read_master_stderr_or_empty(self) -> str:
        try:
            return (self._directory / _ERRORS).read_text("utf-8", "replace")
        except OSError:
            return ""

    def forward_socket(self, local: str, remote: str) -> None:
        argv = ("-S", self._socket, "-O", "forward", "-L", f"{local}:{remote}", "--", self.address.ssh_destination)
        outcome = run_command(
            Command(argv=(*self.address.to_argv_before_destination("StreamLocalBindMask=0177"), *argv))
        )
        if not outcome.ok:
            raise MachineError(
                _("ssh forwards nothing: {error}").format(error=_last_line(outcome)), where=self.ssh_destination
            )

    def __enter__(self) -> SshConnection:
        deadline = time.monotonic() + self._retry_s
        while error := self._connect():
            if time.monotonic() >= deadline:
                lost = self._connection_lost(error)
                self._close()
                raise lost
            time.sleep(_RETRY_PAUSE_S)
        return self

    def __exit__(self, *failure: object) -> None:
        self._close()

    def _connect(self) -> str | None:
        if self.address.known_hosts:
            self.address.known_hosts.parent.mkdir(parents=True, exist_ok=True)
        # The remote `cat` ends when this process does, because its standard input is our end of the pipe.
        remote = f"echo {_READY}; exec cat >/dev/null"
        master = ("-M", "-S", self._socket, "-T", "--", self.address.ssh_destination, remote)
        errors = self._directory / _ERRORS
        try:
            self._master = _start_ssh((*self.address.to_argv_before_destination(*self._options), *master), errors)
        except SshClientMissing:
            self._close()
            raise
        line = self._master.stdout.readline() if self._master.stdout else b""
        if line.decode("utf-8", "replace").strip() == _READY:
            return None
        self._master.wait()
        return _read_last_error_or_placeholder(errors)

    def run(self, command: str, stdin: str = "", *, timeout_s: float = _COMMAND_S) -> Outcome:
        outcome = run_command(Command(argv=self.to_argv(command), timeout_s=timeout_s), stdin)
        if outcome.exit_code == CONNECTION_LOST_CODE:
            raise self._connection_lost(_last_line(outcome))
        return outcome

    def check_output(self, command: str, error_message: str, stdin: str = "", *, timeout_s: float = _COMMAND_S) -> str:
        outcome = self.run(command, stdin, timeout_s=timeout_s)
        if outcome.ok:
            return outcome.stdout
        step = _("look there with `{shell_command}`, and try again").format(
            shell_command=self.address.unquoted_ssh_command
        )
        raise MachineError(
            _("{error}: {last_line}").format(error=error_message, last_line=_last_line(outcome)),
            where=self.ssh_destination,
            next_step=step,
        )

    def start(self, command: str, *, stdin: int, stdout: int) -> ProcessHandle:
        return start_command(Command(argv=self.to_argv(command)), stdin=stdin, stdout=stdout, stderr=PIPE)

    def to_argv(self, command: str) -> tuple[str, ...]:
        session = ("-S", self._socket, "-o", "ControlMaster=no", "-T", "--", self.address.ssh_destination, command)
        return (*self.address.to_argv_before_destination(), *session)

    def _connection_lost(self, error: str) -> SshConnectionFailed:
        test = self.address.unquoted_ssh_command.replace("ssh", "ssh -oBatchMode=yes", 1)
        return SshConnectionFailed(
            _("ssh to {name} failed: {error}").format(name=self.ssh_destination, error=error),
            next_step=_("make `{test} true` work: key, known host, network").format(test=test),
            output=self.read_master_stderr_or_empty(),
        )

    def _close(self) -> None:
        if self._master:
            self._master.kill()
            self._master.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def _start_ssh(argv: tuple[str, ...], error_file: Path) -> ProcessHandle:
    """Start ssh with pipes, in a session of its own so that Ctrl-C does not end it; its errors go to a file."""
    try:
        with error_file.open("wb") as file:
            return start_command(Command(argv=argv), stdin=PIPE, stdout=PIPE, stderr=file)
    except OSError as error:
        raise SshClientMissing(_("there is no ssh on PATH"), next_step=_("install the OpenSSH client")) from error


def _read_last_error_or_placeholder(error_file: Path) -> str:
    lines = error_file.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "ssh ended without output"


def _last_line(outcome: Outcome) -> str:
    lines = (outcome.stderr or outcome.stdout).strip().splitlines()
    return lines[-1] if lines else _("exit code {exit_code}").format(exit_code=outcome.exit_code)


def run_in_foreground_or_open_shell(address: SshAddress, command: str) -> int:
    words = (address.ssh_destination, command) if command else (address.ssh_destination,)
    return run_in_foreground(Command(argv=(*address.to_argv_before_destination(), "--", *words)))


# ---- what ssh's errors mean, and what to do about them


class _Rule(NamedTuple):
    pattern: str
    id: str
    title: str
    remedy: str


_RULES = (
    _Rule(
        pattern=r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key .* has changed",
        id="host-key-changed",
        title=_("its host key changed: the connection may be intercepted"),
        remedy=_("ask its administrator; after a reinstallation, `ssh {name}` shows how to remove the old key"),
    ),
    _Rule(
        pattern=r"Host key verification failed|No \S+ host key is known",
        id="host-key-unknown",
        title=_("its host key is unknown on this machine"),
        remedy=_("run `ssh {name}` once, compare the key, and accept it"),
    ),
    _Rule(
        pattern=r"Could not resolve hostname|Name or service not known|nodename nor servname",
        id="host-unknown",
        title=_("unknown host name"),
        remedy=_("correct the name, or give it a Host entry in ~/.ssh/config"),
    ),
    _Rule(
        pattern=r"Permission denied|Too many authentication failures|no mutual signature|passphrase",
        id="login-refused",
        title=_("ssh would ask for a password: the host accepts none of your keys"),
        remedy=_("ssh-copy-id {name}, or load the key with ssh-add"),
    ),
    _Rule(
        pattern=r"python3: (command )?not found|python3: No such file|Unknown command: python3",
        id="no-python",
        title=_("it has no python3"),
        remedy=_("install Python 3.6 or newer there: apt-get install python3"),
    ),
    _Rule(
        pattern=r"administratively prohibited|streamlocal|forwarding (is )?disabled",
        id="no-forwarding",
        title=_("its sshd forwards no sockets"),
        remedy=_("set AllowStreamLocalForwarding yes in its sshd_config"),
    ),
)
_BEHIND = "open failed: connect failed"
"""What a jump host says that is reached itself, and does not reach the node."""


def explain_ssh_error(name: str, output: str) -> Finding:
    """Return why ssh did not reach `name`, by all that it wrote; a jump host that failed is named in its line."""
    lines = [line.strip() for line in output.strip().splitlines() if line.strip(" @")]
    for rule in _RULES:
        if match := re.search(rule.pattern, output):
            line = next((line for line in lines if match.group() in line), lines[-1])
            return Finding(id=rule.id, title=rule.title, seen=line, where=name, remedy=rule.remedy.format(name=name))
    last = next((line for line in lines if _BEHIND in line), lines[-1] if lines else _("ssh ended without output"))
    remedy = _("make `ssh {name} true` work: check power, network and sshd of the host").format(name=name)
    return Finding(id="unreachable", title=_("it does not answer"), seen=last, where=name, remedy=remedy)
