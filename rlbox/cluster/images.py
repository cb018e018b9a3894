"""Bring an image to the nodes that lack it, over their own connections: each engine pulls what it does not have.

Bytes leave this machine once: the first node that lacks some serves them to the others.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlbox.cluster.image import SentImage
from rlbox.cluster.reach.fleet import Fleet
from rlbox.cluster.reach.link import Going, NodeLink
from rlbox.cluster.spool import Spool, spooling
from rlbox.engine.oci import parse_manifest
from rlbox.engine.push import push_image
from rlbox.engine.reference import Reference, parse_reference
from rlbox.engine.registry_client import PushDestination, Registry
from rlbox.errors import EngineError, NodeError, RlboxError
from rlbox.i18n import _
from rlbox.system.progress import ProgressItem

_BLOCK = 1 << 18
_PARTS = "parts"
Tell = Callable[[ProgressItem], None]


class ImageSource:
    """The image of this machine's engine, whose parts come into a spool when a node wants them."""

    def __init__(self, tag: str, image: Mapping[str, Any], spool: Spool, host: str) -> None:
        self._tag, self._image, self.spool, self._host = tag, dict(image), spool, host
        self._word, self._pushes = secrets.token_hex(6), 0
        self._wanted: set[str] = set()
        self._lock = threading.Lock()
        self._pushing = False

    def describe(self) -> SentImage:
        """Return what the image is made of; none of its layers is read for that where its engine knows them."""
        self.spool.wanted = lambda digest: False
        self._push()
        tag = str(self._pushes)
        digest = self.spool.tags[tag]
        found = {digest: self.spool.manifests[digest]}
        known = [parse_manifest(text, kind) for kind, text in found.values()]
        for child in known[0].manifests:
            kind, text = self.spool.manifests[child.digest]
            found[child.digest] = (kind, text)
            known.append(parse_manifest(text, kind))
        parts = {part.digest: part for one in known for part in (one.config, *one.layers) if part}
        identity = next(one.config.digest for one in known if one.config)
        return SentImage(
            digest=digest,
            identity=identity,
            manifests={name: (kind, text.decode("utf-8")) for name, (kind, text) in found.items()},
            parts=tuple(parts.values()),
        )

    def blocks(self, digest: str, at: int, size: int) -> Iterator[bytes]:
        """Yield a part from a place on, as the engine brings it."""
        self._need(digest)
        yield from self.given(digest, at, size)

    def given(self, digest: str, at: int, size: int) -> Iterator[bytes]:
        """Yield a part from a place on, as it comes from anywhere."""
        for block in self.spool.blocks(digest, at, size):
            for start in range(0, len(block), _BLOCK):
                yield block[start : start + _BLOCK]

    def want(self, digests: Iterable[str]) -> None:
        """Have the engine bring parts, all in one go."""
        with self._lock:
            self._wanted |= {*digests}

    def _need(self, digest: str) -> None:
        with self._lock:
            if self.spool.has(digest):
                return
            self._wanted.add(digest)
            if self._pushing:
                return
            self._pushing = True
            self.spool.fail(None)
        threading.Thread(target=self._bring, name="parts of the image", daemon=True).start()

    def _bring(self) -> None:
        """Push until all that is wanted is there; what is wanted meanwhile needs another push."""
        self.spool.wanted = lambda digest: digest in self._wanted
        while self._lacks():
            try:
                self._push()
            except (RlboxError, OSError) as error:
                with self._lock:
                    self._pushing = False
                    self.spool.fail(error)
                return

    def _lacks(self) -> bool:
        """Whether parts are lacking; where none is, what is wanted later begins anew."""
        with self._lock:
            self._pushing = not all(map(self.spool.has, self._wanted))
            return self._pushing

    def _push(self) -> None:
        self._pushes += 1
        reference = Reference(host=self._host, repository=f"rlbox/{self._word}-{self._pushes}", tag=str(self._pushes))
        with Registry(self._host, write=True) as registry:
            goal = PushDestination(reference=reference, registry=registry)
            push_image(self._image, self._tag, goal, on_layer=lambda layer: None, on_retry=lambda text: None)


class PartSource(Protocol):
    """Where the parts of an image come from."""

    def blocks(self, digest: str, at: int, size: int) -> Iterator[bytes]:
        """Yield a part from a place on."""


@contextmanager
def image_here(tag: str, image: Mapping[str, Any]) -> Iterator[tuple[ImageSource, SentImage]]:
    """Yield the image of this machine's engine, ready to be sent while the block runs."""
    with spooling() as (spool, host):
        source = ImageSource(tag, image, spool, host)
        yield source, source.describe()


@dataclass(frozen=True, kw_only=True)
class Sending:
    """What is sent: the image, from where, under which name engines keep it, and the folder for parts on a node."""

    image: SentImage
    source: PartSource
    keep: Reference
    folder: Callable[[str], str]
    tell: Tell
    word: str = field(default_factory=lambda: secrets.token_hex(16))


def send_image(fleet: Fleet, names: Sequence[str], sending: Sending, addresses: Mapping[str, str], port: int) -> None:
    """Bring the image to the nodes `names`, and prove that it is the same there.

    Parameters
    ----------
    addresses
        Where the nodes reach each other; the first of `names` serves the others at `port`.

    Raises
    ------
    NodeError
        It did not get through to a node, or is another there; what came so far stays.
    """
    first, *others = (fleet.links[name] for name in names)
    ways = {first.name: _Sent(first, sending)}
    beside = [addresses[first.name], port] if others and first.name in addresses else None
    ways[first.name].begin(beside=beside)
    upstream = [addresses[first.name], ways[first.name].beside] if beside else None
    for link in others:
        ways[link.name] = _Sent(link, sending)
        ways[link.name].begin(upstream=upstream)
    try:
        Fleet({name: fleet.links[name] for name in names}, ()).each(lambda link: ways[link.name].pull())
    finally:
        for way in ways.values():
            way.end()
    for way in ways.values():
        way.clear()


class _Sent:
    """The way of an image to one node."""

    def __init__(self, link: NodeLink, sending: Sending) -> None:
        self.link, self._sending = link, sending
        self.port = self.beside = 0
        self._done = 0
        self._failed: Exception | None = None
        self._going: Going | None = None

    @property
    def _path(self) -> str:
        return f"{self._sending.folder(self.link.name)}/{_PARTS}"

    def begin(self, beside: list[Any] | None = None, upstream: list[Any] | None = None) -> None:
        """Have the node's program serve its engine, and send what it wants from now on."""
        image = self._sending.image
        self._going = self.link.start(
            "serve",
            disk=self.link.wish.data,
            path=self._path,
            word=self._sending.word,
            manifests=image.rows(),
            sizes=image.sizes,
            beside=beside,
            upstream=upstream,
        )
        first = self._going.first()
        self.port, self.beside = int(first["port"]), int(first["beside"])
        threading.Thread(target=self._give, args=(self._going,), name=f"image to {self.link.name}", daemon=True).start()

    def _give(self, going: Going) -> None:
        sizes, total = self._sending.image.sizes, sum(self._sending.image.sizes.values())
        try:
            for row in going:
                if "came" in row:
                    self._count(int(row["bytes"]), total)
                    continue
                digest, at = str(row["want"]), int(row["at"])
                for block in self._sending.source.blocks(digest, at, sizes[digest]):
                    self.link.tell({"do": "blob", "digest": digest, "at": at, "bytes": len(block)}, block)
                    at += len(block)
                    self._count(len(block), total)
        except (RlboxError, OSError) as error:
            self._failed = error

    def _count(self, size: int, total: int) -> None:
        self._done += size
        self._sending.tell(ProgressItem(key=self.link.name, title=self.link.name, done=self._done, total=total))

    def pull(self) -> None:
        """Have the engine there pull it, name it, and prove it."""
        sending, engine = self._sending, self.link.engine()
        pulled = Reference(
            host=f"127.0.0.1:{self.port}", repository=f"{sending.word}/image", digest=sending.image.digest
        )
        try:
            said = [str(row["error"]) for row in engine.pull(pulled, {}) if "error" in row]
        except EngineError as error:
            raise self._refused(error.what) from error
        if said:
            raise self._refused(said[-1])
        found = self.link.ask("image", image=str(pulled))["image"] or {}
        if found.get("id") not in sending.image.names:
            raise NodeError(
                _("node {link} has another image than was sent: {id}").format(
                    link=self.link.name, id=found.get("id", _("none"))
                ),
                where=sending.image.digest,
                next_step=_("the same command again"),
            )
        engine.tag(str(found["id"]), sending.keep)
        engine.remove_tag(str(pulled))
        told = "there" if not self._done else "sent"
        self._sending.tell(ProgressItem(key=self.link.name, title=self.link.name, mark="✓", told=told, done=self._done))

    def _refused(self, said: str) -> RlboxError:
        why = self.link.ask("blob-failed")["failed"] or str(self._failed or "") or said
        full = "no space left" in why.lower()
        step = _("free space there") if full else _("the same command again: what came stays")
        return EngineError(
            _("the image did not get to node {link}: {why}").format(link=self.link.name, why=why),
            where=self.link.name,
            next_step=step,
        )

    def end(self) -> None:
        """Stop serving; what is there stays, for another try."""
        if self._going is not None:
            self._going.end()

    def clear(self) -> None:
        """Remove the parts: the engine has them now."""
        self.link.ask("remove", disk=self.link.wish.data, path=self._path)


def keep_as(tag: str) -> Reference:
    """Return the name under which a node's engine keeps the image: the same as here."""
    return parse_reference(tag)
