"""Have the engine push an image: it sends the blobs it stores, or packs those it keeps unpacked."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlbox.engine.act.address import engine_is_here, engine_place
from rlbox.engine.act.api import engine
from rlbox.engine.act.login import find_login
from rlbox.engine.reference import Reference, is_loopback
from rlbox.errors import EngineError, RegistryError, RlboxError
from rlbox.files.act.folders import cache_folder, write_atomic
from rlbox.machine.act.http import ATTEMPTS
from rlbox.registry.act.destination import Destination
from rlbox.registry.push import PushedLayer
from rlbox.registry.push_log import PushLog, engine_takes_plain, may_pass, push_error


def check_route(destination: Destination) -> None:
    """Make sure before the engine begins that the registry answers, and that the engine will speak to it.

    Raises
    ------
    RegistryError
        It does not answer, or refuses the login; or its address means this machine, and the engine is on another.
    EngineError
        Plain http was allowed here, but the engine insists on TLS.
    """
    host = destination.reference.host
    if is_loopback(host) and not engine_is_here():
        raise RegistryError(
            f"{host} is another machine for the engine than for rlbox",
            where=engine_place(),
            next_step="name the registry by an address that means the same on both",
        )
    destination.registry.ping()
    if destination.plain_http and not engine_takes_plain(host, engine().info().get("RegistryConfig") or {}):
        raise EngineError(
            f"the engine insists on TLS for {host}",
            next_step=f"add {host} to insecure-registries in the engine's /etc/docker/daemon.json",
        )


def push_by_engine(
    identity: str,
    tag: str,
    reference: Reference,
    *,
    on_layer: Callable[[PushedLayer], None],
    on_retry: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> PushLog:
    """Have the engine push its image `tag`, whose id is `identity`, and return what it said.

    Raises
    ------
    RegistryError
        The registry refused, or failed four times.
    """
    with _tagged(identity, tag, reference):
        return _push(reference, on_layer, on_retry, pause)


@contextmanager
def _tagged(identity: str, tag: str, reference: Reference) -> Iterator[None]:
    """Give the image the name it is pushed under, and put that name back afterwards as it was.

    A mark says that the name is rlbox's own, for the push after one that was killed.
    """
    name = f"{reference.name}:{reference.tag}"
    mark = cache_folder("pushes", hashlib.sha256(f"{engine_place()} {name}".encode()).hexdigest()[:16])
    before = engine().find_image(name)
    ours = before is None or mark.exists()
    if ours:
        write_atomic(mark, name)
    engine().tag(tag, reference)
    try:
        yield
    finally:
        with contextlib.suppress(RlboxError):  # what went wrong in between is the news
            if ours:
                engine().remove_tag(name)
                mark.unlink(missing_ok=True)
            elif before and before["Id"] != identity:
                engine().tag(before["Id"], reference)


def _push(
    reference: Reference,
    on_layer: Callable[[PushedLayer], None],
    on_retry: Callable[[str], None],
    pause: Callable[[float], None],
) -> PushLog:
    login = find_login(reference.host)
    log = PushLog()
    for attempt in range(1, ATTEMPTS + 1):
        log.error = ""
        for message in engine().push(reference, login):
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
