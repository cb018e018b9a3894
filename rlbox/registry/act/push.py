"""Push an image through the engine, and prove that the registry has the same bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlbox.engine.oci import Manifest, stored_digest
from rlbox.errors import RegistryError
from rlbox.registry.act.destination import Destination
from rlbox.registry.act.push_engine import check_route, push_by_engine
from rlbox.registry.push import PushCount, PushedLayer, count_push


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
        The registry refused, failed four times, or holds something else than was pushed.
    EngineError
        The engine insists on TLS.
    """
    contents = (image.get("RootFS") or {}).get("Layers") or []
    stored = stored_digest(image)
    check_route(destination)
    there = destination.find() if stored else None
    if there and there.digest == stored:
        return Pushed(manifest=there, count=count_push({}, there.layers, contents), exact=True)
    log = push_by_engine(image["Id"], tag, destination.reference, on_layer=on_layer, on_retry=on_retry, pause=pause)
    manifest = _verified(destination, stored or log.digest)
    return Pushed(manifest=manifest, count=count_push(log.layers, manifest.layers, contents), exact=bool(stored))


def _verified(destination: Destination, wanted: str) -> Manifest:
    manifest, reference = destination.get(), destination.reference
    if manifest.digest != wanted:
        raise RegistryError(
            f"{reference} is {manifest.digest} in the registry; what was pushed is {wanted}",
            where=reference.name,
            next_step="somebody else may push to this tag; choose another, or repeat",
        )
    return manifest
