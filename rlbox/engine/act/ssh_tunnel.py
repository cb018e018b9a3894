"""Reach an engine over SSH: its socket is forwarded to one of this machine, which every client can speak to."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from rlbox.errors import EngineError
from rlbox.machine.act.command import PIPE, Started, start_command
from rlbox.printable import isolated
from rlbox.values import Command

ENGINE_SOCKET = "/var/run/docker.sock"
_CONNECT_S = 15
_OPTIONS = (
    "BatchMode=yes",
    "ControlMaster=no",
    "ControlPath=none",
    "ExitOnForwardFailure=yes",
    "StreamLocalBindMask=0177",
    f"ConnectTimeout={_CONNECT_S}",
    "ServerAliveInterval=10",
    "ServerAliveCountMax=3",
)
# what it prints is read below; it ends when this process does, whose end of the pipe is its standard input
_REMOTE = (
    'id -u; id -g; stat -Lc %g "{socket}" || exit 1; printf "%s\\n" "$HOME"; '
    's="${{XDG_STATE_HOME:-$HOME/.local/state}}/rlbox"; mkdir -p "$s" || exit 1; '
    'printf "%s\\n" "$s"; exec cat >/dev/null'
)


@dataclass(frozen=True, kw_only=True)
class Tunnel:
    """A forwarded engine: `address` is that of the socket here, all else is of the machine and the user there.

    `state` is the folder of what that machine knows of its runs (`state_folder`).
    """

    address: str
    socket: str
    uid: int
    gid: int
    socket_gid: int
    home: str
    state: str


@cache
def open_tunnel(address: str) -> Tunnel:
    """Return the tunnel to the engine at `address`, `ssh://[USER@]HOST[:PORT][/SOCKET]`; it ends with this process.

    Raises
    ------
    EngineError
        ssh cannot connect without a question, or there is no engine's socket; ssh's own words are quoted.
    """
    place = urlsplit(address)
    host, socket = place.hostname or "", place.path if len(place.path) > 1 else ENGINE_SOCKET
    login = f"{place.username}@{host}" if place.username else host
    port = ("-p", str(place.port)) if place.port else ()
    folder = Path(tempfile.mkdtemp(prefix="rlbox-ssh-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    local, remote = folder / "docker.sock", _REMOTE.format(socket=socket)
    options = [word for option in _OPTIONS for word in ("-o", option)]
    ssh = Command(argv=("ssh", "-T", *options, *port, "-L", f"{local}:{socket}", "--", login, remote))
    facts = _start(ssh, folder / "ssh.err", address, login).split("\n")
    uid, gid, socket_gid = map(int, facts[:3])
    home, state = facts[3:5]
    return Tunnel(
        address=f"unix://{local}", socket=socket, uid=uid, gid=gid, socket_gid=socket_gid, home=home, state=state
    )


def _start(command: Command, errors: Path, address: str, login: str) -> str:
    """Start ssh in a session of its own, so that Ctrl-C does not end it, and return the lines that it begins with."""
    try:
        with errors.open("wb") as words:
            ssh = start_command(command, stdin=PIPE, stdout=PIPE, stderr=words)
    except OSError as error:
        raise EngineError("there is no ssh on PATH", where=address, next_step="install the OpenSSH client") from error
    atexit.register(_end, ssh)
    lines = [ssh.stdout.readline().decode() if ssh.stdout else "" for _ in range(5)]
    if not all(lines):
        ssh.wait()
        said = errors.read_text("utf-8", "replace").strip().splitlines()
        raise EngineError(
            f"the engine cannot be reached over ssh: {isolated(said[-1]) if said else 'ssh ended without a word'}",
            where=address,
            next_step=f"make `ssh -oBatchMode=yes {login} docker version` work: key, known host, right to the engine",
        )
    return "".join(lines)


def _end(ssh: Started) -> None:
    ssh.kill()
    ssh.wait()
