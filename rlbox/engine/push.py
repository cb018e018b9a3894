"""Have the engine push an image, and prove that the registry has the same bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rlbox.engine.address import engine_is_here, engine_place
from rlbox.engine.api import engine
from rlbox.engine.login import find_login
from rlbox.engine.oci import Manifest, stored_digest
from rlbox.engine.push_log import (
    PushCount,
    PushedLayer,
    PushLog,
    count_push,
    engine_takes_plain,
    may_pass,
    push_error,
)
from rlbox.engine.reference import Reference, is_loopback
from rlbox.engine.registry_client import Destination
from rlbox.errors import EngineError, RegistryError, RlboxError
from rlbox.i18n import _
from rlbox.system.http import ATTEMPTS, retry


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """What the registry holds after a push.

    `exact` says that these are the bytes the engine stores; an engine without the containerd store keeps no manifest
    and packs the layers as it pushes, so that a push of its own is the first time that a digest exists.
    """

    manifest: Manifest
    count: PushCount
    exact: bool


def push_image(
    image: dict[str, Any],
    tag: str,
    destination: Destination,
    *,
    on_layer: Callable[[PushedLayer], None],
    on_retry: Callable[[str], None],
) -> Pushed:
    """Have the engine push its image `tag` to `destination`, and verify what the registry holds then.

    Parameters
    ----------
    image
        The engine's description of `tag`.
    on_retry
        Told why, and how long from now, the engine's push is repeated.

    Raises
    ------
    RegistryError
        The registry does not answer, refused, failed four times, or holds something else than was pushed; or its
        address means this machine, and the engine is on another.
    EngineError
        Plain http was allowed here, but the engine insists on TLS.
    """
    contents = (image.get("RootFS") or {}).get("Layers") or []
    stored = stored_digest(image)
    _check_route(destination)
    there = destination.find() if stored else None
    if there and there.digest == stored:
        return Pushed(manifest=there, count=count_push({}, there.layers, contents), exact=True)
    with _tagged(image["Id"], tag, destination.reference):
        log = _push(destination.reference, on_layer, on_retry)
    manifest = _verified(destination, stored or log.digest)
    return Pushed(manifest=manifest, count=count_push(log.layers, manifest.layers, contents), exact=bool(stored))


def _check_route(destination: Destination) -> None:
    """Make sure before the engine begins that the registry answers, and that the engine will speak to it."""
    host = destination.reference.host
    if is_loopback(host) and not engine_is_here():
        raise RegistryError(
            _("{host} is another machine for the engine than for rlbox").format(host=host),
            where=engine_place(),
            next_step=_("name the registry by an address that means the same on both"),
        )
    destination.registry.ping()
    if destination.plain_http and not engine_takes_plain(host, engine().info().get("RegistryConfig") or {}):
        raise EngineError(
            _("the engine insists on TLS for {host}").format(host=host),
            next_step=_("add {host} to insecure-registries in the engine's /etc/docker/daemon.json").format(host=host),
        )


@contextmanager
def _tagged(identity: str, tag: str, reference: Reference) -> Iterator[None]:
    """Give the image the name it is pushed under, and restore the previous state of that name afterwards."""
    name = f"{reference.name}:{reference.tag}"
    before = engine().find_image(name)
    engine().tag(tag, reference)
    try:
        yield
    finally:
        with contextlib.suppress(RlboxError):  # what went wrong in between is the news
            if before is None:
                engine().remove_tag(name)
            elif before["Id"] != identity:
                engine().tag(before["Id"], reference)


class _MayPass(Exception):
    """The engine gave up for a reason that may pass by itself."""


def _push(reference: Reference, on_layer: Callable[[PushedLayer], None], on_retry: Callable[[str], None]) -> PushLog:
    login = find_login(reference.host)
    log = PushLog()

    def push() -> None:
        log.error = ""
        for message in engine().push(reference, login):
            if layer := log.feed(message):
                on_layer(layer)
        if log.error:
            raise _MayPass(log.error[:200]) if may_pass(log.error) else push_error(log.error, reference, ATTEMPTS)

    try:
        retry(push, _MayPass, on_retry=on_retry)
    except _MayPass as failure:
        raise push_error(log.error, reference, ATTEMPTS) from failure
    return log


def _verified(destination: Destination, wanted: str) -> Manifest:
    manifest, reference = destination.get(), destination.reference
    if manifest.digest != wanted:
        raise RegistryError(
            _("{reference} is {digest} in the registry; what was pushed is {wanted}").format(
                reference=reference, digest=manifest.digest, wanted=wanted
            ),
            where=reference.name,
            next_step=_("somebody else may push to this tag; choose another, or repeat"),
        )
    return manifest
