"""Where the engine is, and what to say when none answers there."""

from __future__ import annotations

import os
from pathlib import Path

from rlbox.errors import EngineError, EngineUnavailable
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.system.json_files import read_json_object_or_empty

REMOTE_ENGINE_NEXT_STEP = _(
    "start that engine, or correct DOCKER_HOST (or the docker context), or unset it for this machine's own"
)
"""What to do about an engine that does not answer where `rlbox engine up` starts none."""
DEFAULT_SOCKET = "unix:///var/run/docker.sock"


def resolve_engine_address_opening_tunnel() -> str:
    """Return the address to speak to: that of `find_engine_url`, or of a socket here that leads to it over SSH."""
    place = find_engine_url()
    if not place.startswith("ssh://"):
        return place
    from rlbox.ssh.tunnel import open_engine_tunnel

    return open_engine_tunnel(place).local_address


def find_engine_url() -> str:
    """Return where the engine is: `DOCKER_HOST`, else the docker client's current context, else the usual socket."""
    if address := os.environ.get("DOCKER_HOST"):
        return address
    config = Path(os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"))
    name = os.environ.get("DOCKER_CONTEXT") or str(
        read_json_object_or_empty(config / "config.json", follow_links=True).get("currentContext", "")
    )
    if name in ("", "default"):
        return DEFAULT_SOCKET
    import hashlib

    meta = config / "contexts/meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
    try:
        return str(parse_untrusted_json(meta.read_bytes())["Endpoints"]["docker"]["Host"])
    except (OSError, ValueError, KeyError) as error:
        raise EngineError(
            _("docker context {name!r} cannot be read").format(name=name),
            where=str(meta),
            next_step="docker context ls",
        ) from error


def is_engine_on_unix_socket() -> bool:
    return find_engine_url().startswith("unix:")


def create_engine_unreachable_error(address: str, error: BaseException) -> EngineError:
    if isinstance(error, PermissionError) or "Permission denied" in str(error):
        return EngineError(
            _("this user has no permission to use Docker"),
            where=address,
            next_step=_("sudo usermod -aG docker $USER, then log in again (or run as root)"),
        )
    if not address.startswith(("unix:", "ssh:")):
        return EngineUnavailable(_("cannot connect to Docker"), where=address, next_step=REMOTE_ENGINE_NEXT_STEP)
    return EngineUnavailable(_("cannot connect to Docker"), where=address, next_step="rlbox engine up")


def create_missing_docker_cli_error() -> EngineError:
    return EngineError(_("no docker client on PATH"), next_step=_("install one, as in docker.io or docker-ce-cli"))
