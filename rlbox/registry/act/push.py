"""Push an image, from the engine's files or through the engine, and prove that the registry has the same bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlbox.engine.act.address import engine_is_here
from rlbox.engine.oci import Manifest, stored_digest
from rlbox.engine.reference import Reference, parse_reference
from rlbox.errors import RegistryError
from rlbox.registry.act.destination import Destination
from rlbox.registry.push import PushCount, PushedLayer, count_push

if TYPE_CHECKING:
    from rlbox.engine.act.files import StoredImage


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
    pause: Callable[[float], None] = time.sleep,
) -> Pushed:
    """Push the engine's image `tag` to `destination` and verify what the registry holds then.

    Where this user can read the engine's files, they are sent as they are; elsewhere the engine pushes.

    Parameters
    ----------
    image
        The engine's description of `tag`.
    on_retry
        Told why, and how long from now, the engine's push is repeated.

    Raises
    ------
    RegistryError
        The registry refused, failed four times, or holds something else than was pushed.
    EngineError
        The engine is to push, and insists on TLS.
    """
    contents = (image.get("RootFS") or {}).get("Layers") or []
    stored = stored_digest(image)
    there = destination.find() if stored else None
    if there and there.digest == stored:
        return Pushed(manifest=there, count=count_push({}, there.layers, contents), exact=True)
    if files := _find_files(stored):
        from rlbox.registry.act.push_blobs import push_blobs

        destination.registry().ping()
        layers = push_blobs(destination, files, _elsewhere(image, destination.reference), on_layer)
        wanted = stored
    else:
        from rlbox.registry.act.push_engine import check_route, push_by_engine

        check_route(destination)
        log = push_by_engine(image["Id"], tag, destination.reference, on_layer=on_layer, on_retry=on_retry, pause=pause)
        layers, wanted = log.layers, stored or log.digest
    manifest = _verified(destination, wanted)
    return Pushed(manifest=manifest, count=count_push(layers, manifest.layers, contents), exact=bool(stored))


def _find_files(stored: str) -> StoredImage | None:
    if not stored or not engine_is_here():
        return None
    from rlbox.engine.act.files import find_blobs

    return find_blobs(stored)


def _elsewhere(image: dict[str, Any], reference: Reference) -> str:
    """Return a repository of the same registry that the engine knows to have the image, or ""."""
    known = map(parse_reference, image.get("RepoDigests") or ())
    others = (name.repository for name in known if name.host == reference.host)
    return next((name for name in others if name != reference.repository), "")


def _verified(destination: Destination, wanted: str) -> Manifest:
    manifest, reference = destination.get(), destination.reference
    if manifest.digest != wanted:
        raise RegistryError(
            f"{reference} is {manifest.digest} in the registry; what was pushed is {wanted}",
            where=reference.name,
            next_step="somebody else may push to this tag; choose another, or repeat",
        )
    return manifest
