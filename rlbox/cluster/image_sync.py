"""Bring an image to nodes: over their connections, from a registry, or packed by gzip for old engines."""

from __future__ import annotations

import itertools
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from rlbox.cluster.connection import NodeConnection, RemoteStream
from rlbox.cluster.fleet import Fleet
from rlbox.cluster.push_receiver import PushReceiver, spooling
from rlbox.engine.container import TARGET_LABEL
from rlbox.engine.oci import LAYER_TYPE, Descriptor, Manifest, compute_digest, encode_json, parse_manifest
from rlbox.engine.push import push_and_verify_image
from rlbox.engine.reference import ImageReference, parse_reference
from rlbox.engine.registry_auth import read_docker_login
from rlbox.engine.registry_client import PushDestination, Registry, create_digest_error
from rlbox.errors import EngineError, NodeError, RegistryError, RlboxError, SpecError
from rlbox.foreign import parse_json, whole_number
from rlbox.i18n import _
from rlbox.system.compression import ChunkReader, compress_gzip, decompress_layer
from rlbox.system.files import cache_path, write_atomic
from rlbox.system.network_settings import find_ca_bundle
from rlbox.system.process_table import read_text
from rlbox.system.progress import ProgressItem
from rlbox.values import Secret

_ZSTD_SINCE = 23  # source: Docker Engine 23.0 release notes, "zstd"


def unpacks_zstd(version: str) -> bool:
    """Tell of an engine by its version whether it takes layers that are packed by zstd; one that tells none does."""
    major = whole_number(version.partition(".")[0])
    return major is None or major >= _ZSTD_SINCE


@dataclass(frozen=True, kw_only=True)
class SentImage:
    """An image as it is given to nodes.

    `digest` names what is pulled, `manifests` are the documents behind it by digest, each with its media type; `parts`
    its configuration and layers. `identity` is the configuration's digest: an engine with the older store calls the
    image by that, one with containerd's by the manifest's; it covers what every layer holds.
    """

    digest: str
    identity: str
    manifests: Mapping[str, tuple[str, str]]
    parts: tuple[Descriptor, ...]

    @property
    def names(self) -> frozenset[str]:
        """What engines call it."""
        return frozenset((self.digest, self.identity, *self.manifests))

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of each part, in bytes."""
        return {part.digest: part.size for part in self.parts}

    def rows(self) -> dict[str, dict[str, str]]:
        """Return the manifests as a node's program takes them."""
        return {digest: {"type": kind, "text": text} for digest, (kind, text) in self.manifests.items()}


_BLOCK = 1 << 18
_PARTS = "parts"
Tell = Callable[[ProgressItem], None]


class ImageSource:
    """The image of this machine's engine, whose parts come into a spool when a node wants them."""

    def __init__(self, tag: str, image: Mapping[str, Any], spool: PushReceiver, host: str) -> None:
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
        reference = ImageReference(
            host=self._host, repository=f"rlbox/{self._word}-{self._pushes}", tag=str(self._pushes)
        )
        with Registry(self._host, write=True) as registry:
            goal = PushDestination(reference=reference, registry=registry)
            push_and_verify_image(self._image, self._tag, goal, on_layer=lambda layer: None, on_retry=lambda text: None)


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
    keep: ImageReference
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

    def __init__(self, link: NodeConnection, sending: Sending) -> None:
        self.link, self._sending = link, sending
        self.port = self.beside = 0
        self._done = 0
        self._failed: Exception | None = None
        self._going: RemoteStream | None = None

    @property
    def _path(self) -> str:
        return f"{self._sending.folder(self.link.name)}/{_PARTS}"

    def begin(self, beside: list[Any] | None = None, upstream: list[Any] | None = None) -> None:
        """Have the node's program serve its engine, and send what it wants from now on."""
        image = self._sending.image
        self._going = self.link.start(
            "serve",
            disk=self.link.options.data,
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

    def _give(self, going: RemoteStream) -> None:
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
        self._sending.tell(
            ProgressItem(key=self.link.name, title=self.link.name, done_bytes=self._done, total_bytes=total)
        )

    def pull(self) -> None:
        """Have the engine there pull it, name it, and prove it."""
        sending, engine = self._sending, self.link.engine()
        pulled = ImageReference(
            host=f"127.0.0.1:{self.port}", repository=f"{sending.word}/image", digest=sending.image.digest
        )
        try:
            said = [str(row["error"]) for row in engine.pull_image(pulled, {}) if "error" in row]
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
        engine.tag_image(str(found["id"]), sending.keep)
        engine.remove_tag(str(pulled))
        told = "there" if not self._done else "sent"
        self._sending.tell(
            ProgressItem(key=self.link.name, title=self.link.name, mark="✓", status_text=told, done_bytes=self._done)
        )

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
        self.link.ask("remove", disk=self.link.options.data, path=self._path)


def keep_as(tag: str) -> ImageReference:
    """Return the name under which a node's engine keeps the image: the same as here."""
    return parse_reference(tag)


_ROW, _GZIP = "gzip", f"{LAYER_TYPE}+gzip"


class GzipSource:
    """An image with gzip in place of zstd; a layer that was packed before is packed again when a node wants it."""

    def __init__(self, source: ImageSource, image: SentImage) -> None:
        self._source, self._image = source, image
        self._kind, self._text, self._layers = _manifest(image)
        self._old = {layer.digest: layer for layer in self._layers if layer.media_type.endswith("zstd")}
        self._parts = {digest: part for digest in self._old if (part := _remembered(digest))}
        self._packing: set[str] = set()
        self._lock = threading.Lock()

    def known(self) -> SentImage | None:
        """Return the image where all of its layers were packed here before; none is read for that."""
        return self._made() if len(self._parts) == len(self._old) else None

    def image(self, tell: Tell) -> SentImage:
        """Return the image; it is as it was where no layer is zstd.

        Raises
        ------
        EngineError
            The engine here does not bring a layer, or a torn one.
        """
        if new := [layer for digest, layer in self._old.items() if digest not in self._parts]:
            for layer, part in _packed(self._source, new, tell):
                write_atomic(_memory(layer.digest), f"{part.digest} {part.size}\n")
                self._parts[layer.digest] = part
        return self._made()

    def blocks(self, digest: str, at: int, size: int) -> Iterator[bytes]:
        """Yield a part from a place on, as the engine brings it, or as it is packed."""
        layer = next((self._old[old] for old, part in self._parts.items() if part.digest == digest), None)
        if layer is None:
            yield from self._source.blocks(digest, at, size)
            return
        with self._lock:
            begins = not self._source.spool.has(digest) and digest not in self._packing
            self._packing |= {digest}
            if begins:
                self._source.spool.fail(None)
        if begins:
            threading.Thread(target=self._pack, args=(layer, digest), name="a layer by gzip", daemon=True).start()
        yield from self._source.given(digest, at, size)

    def _pack(self, layer: Descriptor, digest: str) -> None:
        failed: Exception | None = None
        try:
            self._source.spool.add(_gzip(self._source.blocks(layer.digest, 0, layer.size), layer), digest)
        except (RlboxError, OSError, ValueError) as error:
            _memory(layer.digest).unlink(missing_ok=True)
            failed = _torn(layer, error) if isinstance(error, ValueError) else error
        with self._lock:
            self._packing -= {digest}
            if failed:
                self._source.spool.fail(failed)

    def _made(self) -> SentImage:
        if not self._old:
            return self._image
        layers = [self._parts.get(layer.digest, layer) for layer in self._layers]
        manifest = {**parse_json(self._text), "layers": [layer.to_json() for layer in layers]}
        body = encode_json(manifest)
        known = {part.digest: part for part in (*self._image.parts, *layers)}
        used = [known[digest] for digest in dict.fromkeys((self._image.identity, *(layer.digest for layer in layers)))]
        return SentImage(
            digest=compute_digest(body),
            identity=self._image.identity,
            manifests={compute_digest(body): (self._kind, body.decode("utf-8"))},
            parts=tuple(used),
        )


def _manifest(image: SentImage) -> tuple[str, str, tuple[Descriptor, ...]]:
    """Return type, text and layers of the manifest that has the image's configuration."""
    known = [(kind, text, parse_manifest(text.encode("utf-8"), kind)) for kind, text in image.manifests.values()]
    return next(
        (kind, text, found.layers)
        for kind, text, found in known
        if found.config and found.config.digest == image.identity
    )


def _memory(digest: str) -> Path:
    return cache_path("gzip", digest.partition(":")[2])


def _remembered(digest: str) -> Descriptor | None:
    """Return what a layer became when it was packed here before."""
    words = read_text(_memory(digest)).split()
    if len(words) != 2 or (size := whole_number(words[1])) is None:
        return None
    return Descriptor(media_type=_GZIP, digest=words[0], size=size)


def _packed(source: ImageSource, layers: list[Descriptor], tell: Tell) -> Iterator[tuple[Descriptor, Descriptor]]:
    """Yield layers, each with what it is when packed by gzip."""
    source.want(layer.digest for layer in layers)
    total, done, ended = sum(layer.size for layer in layers), 0, threading.Event()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for layer, new in zip(layers, pool.map(lambda one: _pack(source, one, ended), layers), strict=True):
                done += layer.size
                tell(ProgressItem(key=_ROW, title="packing by gzip", done_bytes=done, total_bytes=total))
                yield layer, new
        except BaseException as error:
            ended.set()  # what is at work still ends, also at Ctrl-C
            source.spool.fail(error if isinstance(error, Exception) else EngineError(_("the packing was ended")))
            raise
    tell(ProgressItem(key=_ROW, title="packing by gzip", mark="✓", status_text="packed", done_bytes=total))


def _pack(source: ImageSource, layer: Descriptor, ended: threading.Event) -> Descriptor:
    given = source.blocks(layer.digest, 0, layer.size)
    try:
        digest, size = source.spool.add(_gzip(itertools.takewhile(lambda block: not ended.is_set(), given), layer))
    except ValueError as error:
        raise _torn(layer, error) from error
    return Descriptor(media_type=_GZIP, digest=digest, size=size)


def _gzip(given: Iterator[bytes], layer: Descriptor) -> Iterator[bytes]:
    return compress_gzip(decompress_layer(ChunkReader(given), layer.media_type))


def _torn(layer: Descriptor, error: ValueError) -> EngineError:
    return EngineError(
        _("a layer of the image is torn in this machine's engine: {error}").format(error=error), where=layer.digest
    )


@dataclass(frozen=True, kw_only=True)
class RegistryImage:
    """An image of a registry: `pinned` by digest; `identity` and `names` are those of `SentImage`.

    `zstd` says that layers are packed so, which an engine before Docker 23 cannot unpack.
    `login` is what docker on this machine has for the registry: nodes' engines are given it with each pull, and keep it
    not.
    """

    pinned: ImageReference
    identity: str
    names: frozenset[str]
    zstd: bool = False
    login: dict[str, Secret] = field(default_factory=dict)


def find_in_registry(text: str, target: str, *, plain_http: bool) -> RegistryImage:
    """Return the image that a registry has under a name, with a tag or a digest.

    Raises
    ------
    SpecError
        It is no name of an image, or the image is of another target.
    RegistryError
        The registry does not answer, refuses, or has no such image.
    """
    reference = parse_reference(text)
    name, repository = reference.digest or reference.tag or "latest", reference.repository
    with Registry(reference.host, plain_http=plain_http, ca_bundle=find_ca_bundle) as registry:
        registry.require_registry()
        first = registry.get_manifest(repository, name)
        known = [first, *(registry.get_manifest(repository, child.digest) for child in first.manifests)]
        config = _config(known, text)
        _require_target(_read(registry, repository, config), text, target)
    return RegistryImage(
        pinned=replace(reference, tag="", digest=first.digest),
        identity=config.digest,
        names=frozenset((config.digest, *(one.digest for one in known))),
        zstd=any(layer.media_type.endswith("zstd") for one in known for layer in one.layers),
        login={key: Secret(value) for key, value in read_docker_login(reference.host).items()},
    )


def _config(known: Sequence[Manifest], text: str) -> Descriptor:
    for one in known:
        if one.config:
            return one.config
    raise RegistryError(_("{text} is no image").format(text=text), next_step=_("check name and tag"))


def _read(registry: Registry, repository: str, part: Descriptor) -> Any:
    def read() -> bytes:
        with registry.open_blob(repository, part.digest) as (__, blocks):
            return b"".join(blocks)

    data = registry.retry(read)
    if compute_digest(data) != part.digest:
        raise create_digest_error(f"{registry.host}/{repository}", part.digest, compute_digest(data))
    return parse_json(data)


def _require_target(config: Any, text: str, target: str) -> None:
    labels = config.get("config", {}).get("Labels") or {}
    if (found := labels.get(TARGET_LABEL, "")) != target:
        whose = _("target {found!s}").format(found=found) if found else _("no target")
        raise SpecError(
            _("{text} is an image of {whose}, not of {target}").format(text=text, whose=whose, target=target),
            next_step=_("rlbox push {target} --to REF prints its name").format(target=target),
        )


def pull_image(
    fleet: Fleet, names: Sequence[str], image: RegistryImage, keep: ImageReference, tell: Callable[[ProgressItem], None]
) -> None:
    """Have the engines of nodes pull an image, all at once, and prove that it is the same there.

    Raises
    ------
    EngineError
        An engine could not pull it.
    NodeError
        It is another there.
    """
    login = {key: secret.reveal() for key, secret in image.login.items()}

    def pull(link: NodeConnection) -> None:
        engine, name = link.engine(), str(image.pinned)
        tell(ProgressItem(key=link.name, title=link.name))
        try:
            said = [str(row["error"]) for row in engine.pull_image(image.pinned, login) if "error" in row]
        except EngineError as error:
            raise _refused(link, name, error.what) from error
        if said:
            raise _refused(link, name, said[-1])
        found = link.ask("image", image=name)["image"] or {}
        if found.get("id") not in image.names:
            raise NodeError(
                _("node {link} has another image than the registry: {id}").format(
                    link=link.name, id=found.get("id", _("none"))
                ),
                where=name,
                next_step=_("the same command again"),
            )
        engine.tag_image(str(found["id"]), keep)
        engine.remove_tag(name)
        tell(ProgressItem(key=link.name, title=link.name, mark="✓", status_text="pulled"))

    Fleet({name: fleet.links[name] for name in names}, ()).each(pull)


def _refused(link: NodeConnection, name: str, said: str) -> EngineError:
    return EngineError(
        _("the engine of node {link} could not pull {name}: {said}").format(link=link.name, name=name, said=said),
        where=link.name,
        next_step=_("without --from it is sent from here; or let that node reach the registry"),
    )
