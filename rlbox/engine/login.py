"""What docker's own credential stores hold for a registry."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rlbox.engine.reference import login_name
from rlbox.errors import RegistryError
from rlbox.foreign import parse_json
from rlbox.i18n import _


def find_login(host: str) -> Mapping[str, str]:
    """Return what docker's configuration or its credential helpers hold for a registry; empty: nothing.

    Returns
    -------
    Mapping
        `username` and `password`, or `identitytoken`, which stands for both; with `serveraddress`, as an engine wants
        it.

    Raises
    ------
    RegistryError
        The configuration or a helper cannot be read.
    """
    folder = Path(os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"))
    path = folder / "config.json"
    try:
        settings = parse_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RegistryError(
            _("docker's configuration cannot be read: {error}").format(error=error), where=str(path)
        ) from error
    if not any(settings.get(key) for key in ("auths", "credsStore", "credHelpers")):
        return {}
    found = {key.lower(): value for key, value in _ask_docker(path, host).items()}
    if token := found.get("identitytoken"):
        return {"identitytoken": token, "serveraddress": host}
    if found.get("username"):
        return {"username": found["username"], "password": found["password"], "serveraddress": host}
    return {}


def _ask_docker(path: Path, host: str) -> Mapping[str, str]:
    import docker.auth
    from docker.errors import DockerException

    try:
        return docker.auth.load_config(str(path)).resolve_authconfig(host) or {}
    except (DockerException, ValueError, OSError) as error:
        raise RegistryError(
            _("docker's credentials for {host} cannot be read: {error}").format(host=host, error=error),
            where=str(path),
            next_step=f"docker login {login_name(host)}".rstrip(),
        ) from error
