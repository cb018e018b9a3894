"""Give a proven archive to the engine: as it is, or with plain layers to an engine that cannot read OCI archives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlbox.engine.api import engine
from rlbox.engine.archive_check import Archive, OnBytes, contents_of
from rlbox.engine.archive_parts import DOCKER_MANIFEST_FILE, docker_manifest
from rlbox.engine.archive_rename import renamed
from rlbox.engine.archive_write import file_header
from rlbox.engine.oci import Manifest
from rlbox.errors import NodeError, WorkFailed
from rlbox.i18n import _
from rlbox.system.compression import CHUNK, ChunkReader, DigestCounter, decompress_layer

_BLOCK = 512


@dataclass(frozen=True, kw_only=True)
class LoadedImage:
    """An image that the engine has now; `digest` is its manifest's, `identity` the engine's own id for it."""

    tag: str
    digest: str
    identity: str
    layers: int


def load_archive(archive: Archive, rename: Callable[[str], str], on_bytes: OnBytes = lambda count: None) -> LoadedImage:
    """Load the archive's image and prove that the engine has it.

    `rename` says what it is called there, from its name in the archive; another image that the engine has under that
    keeps it.

    Raises
    ------
    WorkFailed
        It holds no image with a name, or several; or the engine has something else afterwards.
    NodeError
        The engine's disk is full.
    """
    if len(archive.tags) != 1 or len(archive.manifests) != 1:
        raise WorkFailed(
            _("this archive holds {count} images with {tags_count} names; rlbox loads one").format(
                count=len(archive.manifests), tags_count=len(archive.tags)
            ),
            where=str(archive.path),
            next_step=f"docker load --input {archive.path}",
        )
    tag, manifest = rename(archive.tags[0]), archive.manifests[0]
    whole = _keeps_manifests()
    chunks = _file_chunks(archive.path, on_bytes)
    _send(renamed(chunks, tag) if whole else docker_archive(archive, manifest, tag, on_bytes))
    config = manifest.config.digest if manifest.config else ""
    wanted = archive.index.manifests[0].digest if whole else config
    image = engine().find_image(tag)
    if image is None or image["Id"] != wanted:
        found = image["Id"] if image else _("nothing")
        raise WorkFailed(
            _("the engine has {found} as {tag} after loading; the archive holds {wanted}").format(
                found=found, tag=tag, wanted=wanted
            )
        )
    return LoadedImage(tag=tag, digest=manifest.digest, identity=wanted, layers=len(manifest.layers))


def _keeps_manifests() -> bool:
    """Return whether the engine has the containerd store, which loads an OCI archive as it is.

    Source: Docker 20.10 says `open .../blobs/json: no such file` to one.
    """
    return any("io.containerd.snapshotter" in str(line) for line in engine().info().get("DriverStatus") or ())


def _send(chunks: Iterator[bytes]) -> None:
    for message in engine().load(chunks):
        if words := message.get("error"):
            if "no space left" in words:
                raise NodeError(
                    _("the engine's disk is full: {words}").format(words=words),
                    next_step=_("free space there, then repeat"),
                )
            raise WorkFailed(_("the engine could not load the image: {words}").format(words=words))


def _file_chunks(path: Path, on_bytes: OnBytes) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            on_bytes(len(chunk))
            yield chunk


def docker_archive(archive: Archive, manifest: Manifest, tag: str, on_bytes: OnBytes) -> Iterator[bytes]:
    """Return a tar that every engine loads: the configuration as it is, and each layer's plain contents.

    All layers are proven before the first byte; `WorkFailed` names the one whose contents are wrong.
    """
    contents = contents_of(archive, manifest)
    sizes = [_plain_size(archive, manifest, number, content) for number, content in enumerate(contents)]
    return _docker_tar(archive, manifest, tag, contents, sizes, on_bytes)


def _plain_size(archive: Archive, manifest: Manifest, number: int, content: str) -> int:
    layer = manifest.layers[number]
    hashed = DigestCounter()
    try:
        for chunk in decompress_layer(ChunkReader(archive.chunks(layer.digest)), layer.media_type):
            hashed.take(chunk)
    except ValueError as error:
        raise WorkFailed(
            _("blob {digest} cannot be unpacked: {error}").format(digest=layer.digest, error=error),
            where=str(archive.path),
        ) from error
    if hashed.digest != content:
        what = _("blob {digest} holds {hashed_digest}; the image's configuration says {content}").format(
            digest=layer.digest, hashed_digest=hashed.digest, content=content
        )
        raise WorkFailed(
            what,
            where=str(archive.path),
            next_step=_("build the image again where it is, then: rlbox save TARGET {path}").format(
                path=archive.path.name
            ),
        )
    return hashed.size


def _docker_tar(
    archive: Archive, manifest: Manifest, tag: str, contents: list[str], sizes: list[int], on_bytes: OnBytes
) -> Iterator[bytes]:
    config = manifest.config.digest if manifest.config else ""
    names = [f"{content.removeprefix('sha256:')}.tar" for content in contents]
    config_name = f"{config.removeprefix('sha256:')}.json"
    yield from _file(config_name, archive.read(config))
    for layer, name, size in dict(zip(names, zip(manifest.layers, names, sizes, strict=True), strict=True)).values():
        yield file_header(name, size)
        for chunk in decompress_layer(ChunkReader(archive.chunks(layer.digest)), layer.media_type):
            on_bytes(len(chunk))
            yield chunk
        yield bytes(-size % _BLOCK)
    yield from _file(DOCKER_MANIFEST_FILE, docker_manifest(config_name, [tag], names))
    yield bytes(2 * _BLOCK)


def _file(name: str, data: bytes) -> Iterator[bytes]:
    yield file_header(name, len(data)) + data + bytes(-len(data) % _BLOCK)
