"""Reach an engine over ssh: its socket is forwarded to one on this machine, which every client can speak to."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

from rlbox.errors import EngineError, MachineError
from rlbox.i18n import _
from rlbox.ssh.connection import SshClientMissing, SshConnection, parse_ssh_url

ENGINE_SOCKET = "/var/run/docker.sock"
# Prints what `EngineTunnelInfo` holds.
_REMOTE = (
    'id -u; id -g; stat -Lc %g "{socket}" || exit 1; printf "%s\\n" "$HOME"; '
    's="${{XDG_STATE_HOME:-$HOME/.local/state}}/rlbox"; mkdir -p "$s" || exit 1; printf "%s\\n" "$s"'
)


@dataclass(frozen=True, kw_only=True)
class EngineTunnelInfo:
    """`address` is the socket on this machine; everything else is about the remote machine and the user there.

    `remote_state_directory` is the directory in which rlbox on that machine keeps what it knows of its runs.
    """

    local_address: str
    remote_socket: str
    remote_uid: int
    remote_gid: int
    remote_socket_gid: int
    remote_home: str
    remote_state_directory: str


def probe_remote_engine(local_address: str, socket: str, run_there: Callable[[str], str]) -> EngineTunnelInfo:
    """Return the tunnel to the engine at `socket` of a machine whose shell `run_there` asks."""
    uid, gid, socket_gid, home, state = run_there(_REMOTE.format(socket=socket)).splitlines()
    return EngineTunnelInfo(
        local_address=local_address,
        remote_socket=socket,
        remote_uid=int(uid),
        remote_gid=int(gid),
        remote_socket_gid=int(socket_gid),
        remote_home=home,
        remote_state_directory=state,
    )


@cache
def open_engine_tunnel(url: str) -> EngineTunnelInfo:
    """Forward the engine at `ssh://[USER@]HOST[:PORT][/SOCKET]`; the tunnel ends with this process."""
    try:
        address, path = parse_ssh_url(url), urlsplit(url).path
    except ValueError as error:
        raise EngineError(
            _("this is not an address of an engine over ssh: {error}").format(error=error),
            where=url,
            next_step="DOCKER_HOST=ssh://USER@HOST",
        ) from error
    socket = path if len(path) > 1 else ENGINE_SOCKET
    connection = SshConnection(address)
    local = connection.local_temp_directory / "docker.sock"
    try:
        connection.__enter__()
        atexit.register(connection.__exit__)
        connection.forward_socket(str(local), socket)
        error_text = _("the engine's socket is not found")
        return probe_remote_engine(f"unix://{local}", socket, lambda text: connection.check_output(text, error_text))
    except SshClientMissing as error:
        raise EngineError(error.what, where=url, next_step=error.next_step) from error
    except MachineError as error:
        raise EngineError(
            _("the engine cannot be reached over ssh: {error}").format(error=error.what),
            where=url,
            next_step=_(
                "make `ssh -oBatchMode=yes {login} docker version` work: key, known host, right to the engine"
            ).format(login=address.ssh_destination),
        ) from error
