"""Reach an engine over ssh: its socket is forwarded to one on this machine, which every client can speak to."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from rlbox.errors import EngineError
from rlbox.i18n import _
from rlbox.ssh.connection import SshMissing, parse_ssh_url, read_last_error_or_placeholder, start_ssh
from rlbox.system.command import ProcessHandle

ENGINE_SOCKET = "/var/run/docker.sock"
# The user's own ControlMaster would keep the forward open after this process has ended.
_OPTIONS = ("ControlMaster=no", "ControlPath=none", "ExitOnForwardFailure=yes", "StreamLocalBindMask=0177")
_FACT_LINES = 5
# Prints what `EngineTunnel` holds. It ends when this process does, whose end of the pipe is its standard input.
_REMOTE = (
    'id -u; id -g; stat -Lc %g "{socket}" || exit 1; printf "%s\\n" "$HOME"; '
    's="${{XDG_STATE_HOME:-$HOME/.local/state}}/rlbox"; mkdir -p "$s" || exit 1; '
    'printf "%s\\n" "$s"; exec cat >/dev/null'
)


@dataclass(frozen=True, kw_only=True)
class EngineTunnel:
    """`address` is the socket on this machine; everything else is about the remote machine and the user there.

    `remote_state_directory` is the directory in which rlbox on that machine keeps what it knows of its runs.
    """

    address: str
    remote_socket: str
    uid: int
    gid: int
    socket_gid: int
    home: str
    remote_state_directory: str


@cache
def open_engine_tunnel(url: str) -> EngineTunnel:
    """Forward the engine at `ssh://[USER@]HOST[:PORT][/SOCKET]`; the tunnel ends with this process.

    Raises EngineError: `url` has another form, ssh cannot connect without asking, or there is no engine's socket; ssh
      is quoted.
    """
    try:
        address, path = parse_ssh_url(url), urlsplit(url).path
    except ValueError as error:
        raise EngineError(
            _("this is no address of an engine over ssh: {error}").format(error=error),
            where=url,
            next_step="DOCKER_HOST=ssh://USER@HOST",
        ) from error
    socket = path if len(path) > 1 else ENGINE_SOCKET
    directory = Path(tempfile.mkdtemp(prefix="rlbox-ssh-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    local, errors = directory / "docker.sock", directory / "ssh.err"
    forward = ("-T", "-L", f"{local}:{socket}", "--", address.ssh_destination, _REMOTE.format(socket=socket))
    try:
        ssh = start_ssh((*address.to_argv_before_destination(*_OPTIONS), *forward), errors)
    except SshMissing as error:
        raise EngineError(error.what, where=url, next_step=error.next_step) from error
    atexit.register(_kill, ssh)
    lines = [ssh.stdout.readline().decode().rstrip("\n") if ssh.stdout else "" for __ in range(_FACT_LINES)]
    if not all(lines):
        ssh.wait()
        raise EngineError(
            _("the engine cannot be reached over ssh: {read_last_line}").format(
                read_last_line=read_last_error_or_placeholder(errors)
            ),
            where=url,
            next_step=_(
                "make `ssh -oBatchMode=yes {login} docker version` work: key, known host, right to the engine"
            ).format(login=address.ssh_destination),
        )
    uid, gid, socket_gid, home, state = lines
    return EngineTunnel(
        address=f"unix://{local}",
        remote_socket=socket,
        uid=int(uid),
        gid=int(gid),
        socket_gid=int(socket_gid),
        home=home,
        remote_state_directory=state,
    )


def _kill(ssh: ProcessHandle) -> None:
    ssh.kill()
    ssh.wait()
