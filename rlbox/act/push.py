"""Push an image through the engine, which sends the blobs it stores, and prove that the registry has the same bytes."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from rlbox.act.engine_api import engine_address, find_image
from rlbox.act.folders import cache_folder, write_atomic
from rlbox.act.registry_peek import peek_manifest
from rlbox.errors import EngineError, RegistryError, RlboxError
from rlbox.plan.oci import Manifest
from rlbox.plan.push import Layer, PushCount, PushLog, count_push, engine_takes_plain, may_pass, push_error
from rlbox.plan.reference import Reference, is_loopback

if TYPE_CHECKING:
    from rlbox.act.registry import Registry

ATTEMPTS = 4


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """What the registry holds after a push.

    `exact` says that these are the bytes the engine stores; an engine without the containerd store keeps no manifest
    and packs the layers as it pushes, so that a push of its own is the first time that a digest exists.
    """

    manifest: Manifest
    count: PushCount
    exact: bool


def check_route(registry: Callable[[], Registry], host: str, *, plain_http: bool) -> None:
    """Make sure before anything else that the registry answers, and that the engine will speak to it.

    A registry on this machine is not asked: the push itself fails at once when it does not answer.

    Raises
    ------
    RegistryError
        It does not answer, or refuses the login; or its address means this machine, and the engine is on another.
    EngineError
        Plain http was allowed here, but the engine insists on TLS.
    """
    if is_loopback(host):
        if not engine_address().startswith("unix://"):
            raise RegistryError(
                f"{host} is another machine for the engine than for rlbox",
                where=engine_address(),
                next_step="name the registry by an address that means the same on both",
            )
        return
    from rlbox.act.engine_stream import engine_says

    registry().ping()
    if plain_http and not engine_takes_plain(host, engine_says("/info").get("RegistryConfig") or {}):
        raise EngineError(
            f"the engine insists on TLS for {host}",
            next_step=f"add {host} to insecure-registries in the engine's /etc/docker/daemon.json",
        )


def push_image(
    image: dict[str, Any],
    tag: str,
    reference: Reference,
    registry: Callable[[], Registry],
    *,
    on_layer: Callable[[Layer], None],
    on_retry: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> Pushed:
    """Push the engine's image `tag` to `reference` and verify what the registry holds then.

    Parameters
    ----------
    image
        The engine's description of `tag`.
    registry
        Opens the registry; called only when a look without it does not do.
    on_retry
        Told why, and how long from now, the push is repeated.

    Raises
    ------
    RegistryError
        The registry refused, failed four times, or holds something else than was pushed.
    """
    contents = (image.get("RootFS") or {}).get("Layers") or []
    stored = stored_digest(image)
    there = peek_manifest(reference) if stored else None
    if there and there.digest == stored:
        return Pushed(manifest=there, count=count_push({}, there.layers, contents), exact=True)
    with _tagged(image["Id"], tag, reference):
        log = _push(reference, on_layer, on_retry, pause)
    wanted = stored or log.digest
    manifest = _verify(reference, wanted, registry)
    return Pushed(manifest=manifest, count=count_push(log.layers, manifest.layers, contents), exact=bool(stored))


def stored_digest(image: dict[str, Any]) -> str:
    """Return the digest of the manifest that the engine stores, or "" where the store keeps none.

    With the containerd store an image's id is that digest, and each of its names is listed with it.
    """
    identity = str(image["Id"])
    return identity if any(name.endswith(f"@{identity}") for name in image.get("RepoDigests") or ()) else ""


@contextmanager
def _tagged(identity: str, tag: str, reference: Reference) -> Iterator[None]:
    """Give the image the name it is pushed under, and put that name back afterwards as it was.

    A mark says that the name is rlbox's own, for the push after one that was killed.
    """
    name = f"{reference.name}:{reference.tag}"
    mark = cache_folder("pushes", hashlib.sha256(f"{engine_address()} {name}".encode()).hexdigest()[:16])
    before = find_image(name)
    ours = before is None or mark.exists()
    if ours:
        write_atomic(mark, name)
    _tag(tag, reference)
    try:
        yield
    finally:
        with contextlib.suppress(RlboxError):  # what went wrong in between is the news
            if ours:
                _call("DELETE", f"/images/{name}?noprune=1")
                mark.unlink(missing_ok=True)
            elif before and before["Id"] != identity:
                _tag(before["Id"], reference)


def _tag(image: str, reference: Reference) -> None:
    _call("POST", f"/images/{image}/tag?{urlencode({'repo': reference.name, 'tag': reference.tag})}")


def _call(method: str, path: str) -> None:
    from rlbox.act.engine_stream import engine_call

    with engine_call(method, path):
        pass


def _push(
    reference: Reference,
    on_layer: Callable[[Layer], None],
    on_retry: Callable[[str], None],
    pause: Callable[[float], None],
) -> PushLog:
    from rlbox.act.engine_stream import engine_call
    from rlbox.act.registry_auth import engine_header

    path = f"/images/{reference.name}/push?tag={quote(reference.tag)}"
    headers = {"X-Registry-Auth": engine_header(reference.host)}
    log = PushLog()
    for attempt in range(1, ATTEMPTS + 1):
        log.error = ""
        with engine_call("POST", path, headers=headers) as answer:
            for message in answer.messages():
                if layer := log.feed(message):
                    on_layer(layer)
        if not log.error:
            return log
        if attempt == ATTEMPTS or not may_pass(log.error):
            raise push_error(log.error, reference, attempt)
        wait_s = 2.0 ** (attempt - 1)
        on_retry(f"attempt {attempt} of {ATTEMPTS} failed: {log.error[:200]}; again in {wait_s:g} s")
        pause(wait_s)
    raise AssertionError("the last attempt returns or raises")


def _verify(reference: Reference, wanted: str, registry: Callable[[], Registry]) -> Manifest:
    manifest = peek_manifest(reference) or registry().get_manifest(reference.repository, reference.tag)
    if manifest.digest != wanted:
        raise RegistryError(
            f"{reference} is {manifest.digest} in the registry; the engine pushed {wanted}",
            where=reference.name,
            next_step="somebody else may push to this tag; choose another, or repeat",
        )
    return manifest
