"""Networks of single containers: made before the container, gone with it, known by their label alone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

import docker
from docker.errors import APIError

from rlbox.engine.container import NETWORK_LABEL, OWNER_LABEL
from rlbox.errors import EngineError
from rlbox.foreign import whole_number
from rlbox.i18n import _

_MADE_LABEL = "rlbox.made"
_BRIDGE = "bridge"
_FRESH_S = 120.0
"""How long a network may be without its container, which is made next."""

_OUT = _('run.network = "host" in the target, which opens the container to whoever reaches this machine')
_NO_ROOM_STEP = _("docker network ls shows who has them, and docker network rm gives them back; or {out}").format(
    out=_OUT
)
_FAILED_STEP = _("restart the engine, which lays its bridges and firewall rules anew; or {out}").format(out=_OUT)


def has_bridge(client: docker.DockerClient) -> bool:
    """Return whether the engine connects containers by bridges; one started with `--bridge none` does not."""
    found = client.networks.list(names=[_BRIDGE], filters={"driver": _BRIDGE})
    return any(network.name == _BRIDGE for network in found)


def make_network(client: docker.DockerClient, name: str, labels: Mapping[str, str]) -> None:
    """Make the network of the container `name`, in the place of one that was left; others that were left go, too.

    Raises
    ------
    EngineError
        The engine has no addresses left, or cannot make a bridge; its own words are quoted.
    """
    _sweep(client, labels.get(OWNER_LABEL, ""))
    drop_network(client, name)
    known = {**labels, NETWORK_LABEL: name, _MADE_LABEL: f"{time.time():.0f}"}
    try:
        client.api.create_network(name, driver=_BRIDGE, labels=known)
    except APIError as error:
        words = str(error.explanation or error)
        if "address pool" in words:
            what, step = _("the engine has no addresses for one more network"), _NO_ROOM_STEP
        else:
            what, step = _("the engine cannot make a network for the container"), _FAILED_STEP
        raise EngineError(_("{what}: {words}").format(what=what, words=words), where=name, next_step=step) from error


def drop_network(client: docker.DockerClient, name: str) -> None:
    """Remove the network of the container `name`, if there is one."""
    for network in client.networks.list(filters={"label": f"{NETWORK_LABEL}={name}"}):
        with contextlib.suppress(APIError):  # gone by now, or somebody put a container of theirs into it
            network.remove()


def _sweep(client: docker.DockerClient, owner: str) -> None:
    """Remove what a killed rlbox of this user left; the engine refuses for those in which a container runs."""
    for network in client.networks.list(filters={"label": [NETWORK_LABEL, f"{OWNER_LABEL}={owner}"]}):
        made = whole_number(str((network.attrs.get("Labels") or {}).get(_MADE_LABEL, "")))
        if made is not None and abs(time.time() - made) > _FRESH_S:
            with contextlib.suppress(APIError):
                network.remove()
