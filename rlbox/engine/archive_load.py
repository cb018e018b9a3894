"""Verify an OCI archive before the engine sees a byte of it, and load it, unpacked for engines that cannot read OCI."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from rlbox.engine.archive_format import (
    BLOBS_DIR,
    DOCKER_MANIFEST_FILE,
    INDEX_FILE,
    ByteCallback,
    create_docker_manifest,
    format_tar_file_header,
    list_image_tags,
    rename_archive_image,
)
from rlbox.engine.connection import connect_engine
from rlbox.engine.oci import INDEX_TYPES, Descriptor, Manifest, parse_manifest
from rlbox.errors import NodeError, WorkFailed
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.compression import CHUNK, ChunkReader, DigestReader, decompress_layer
from rlbox.system.files import describe_special_file


@dataclass(frozen=True, kw_only=True)
class ImageArchive:
    """A proven archive.

    `index` is what its `index.json` says, `manifests` the images in it, `blobs` where in the file each blob lies
    (digest to offset and size), `tags` the names that its images get.
    """

    path: Path
    index: Manifest
    manifests: tuple[Manifest, ...]
    blobs: Mapping[str, tuple[int, int]]
    tags: tuple[str, ...]

    def read_blob(self, digest: str) -> bytes:
        return b"".join(self.iter_blob(digest))

    def iter_blob(self, digest: str) -> Iterator[bytes]:
        offset, size = self.blobs[digest]
        with open(self.path, "rb") as file:
            file.seek(offset)
            while size:
                chunk = file.read(min(size, CHUNK))
                if not chunk:
                    raise create_truncated_error(self.path, digest)
                size -= len(chunk)
                yield chunk


def read_verified_archive(path: Path, on_bytes: ByteCallback = lambda count: None) -> ImageArchive:
    """Return the archive, every blob of it held to its sha256.

    Raises WorkFailed: it is no OCI archive, cut short, or a blob is damaged or missing; the blob is named.
    """
    if kind := describe_special_file(path):  # which may have no end, or no beginning
        raise WorkFailed(
            _("this is no archive, but {kind}").format(kind=kind), where=str(path), next_step="rlbox save TARGET FILE"
        )
    try:
        with tarfile.open(path, mode="r:") as tar:
            members = _members(tar, path)
            index = _index(tar, members, path)
            for name, member in members.items():
                if name.startswith(BLOBS_DIR):
                    _check_blob(cast(IO[bytes], tar.extractfile(member)), _digest(name), path, on_bytes)
    except tarfile.TarError as error:
        raise WorkFailed(
            _("this is no archive: {error}").format(error=error), where=str(path), next_step="rlbox save TARGET FILE"
        ) from error
    blobs = {
        f"sha256:{name.removeprefix(BLOBS_DIR)}": (member.offset_data, member.size)
        for name, member in members.items()
        if name.startswith(BLOBS_DIR)
    }
    archive = ImageArchive(path=path, index=index, manifests=(), blobs=blobs, tags=list_image_tags(index.manifests))
    manifests = tuple(_images(archive, index))
    return ImageArchive(path=path, index=index, manifests=manifests, blobs=blobs, tags=archive.tags)


def _members(tar: tarfile.TarFile, path: Path) -> dict[str, tarfile.TarInfo]:
    found: dict[str, tarfile.TarInfo] = {}
    end = path.stat().st_size
    last = ""
    try:
        for member in tar:
            last = member.name.removeprefix("./")
            if member.offset_data + member.size > end:
                raise create_truncated_error(path, _digest(last))
            if member.isfile():
                found[last] = member
    except tarfile.ReadError as error:
        raise create_truncated_error(path, _digest(last)) from error
    return found


def _digest(name: str) -> str:
    return f"sha256:{name.removeprefix(BLOBS_DIR)}" if name.startswith(BLOBS_DIR) else name or "its beginning"


def _index(tar: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo], path: Path) -> Manifest:
    if INDEX_FILE not in members:
        step = f"docker load --input {path}" if "manifest.json" in members else "rlbox save TARGET FILE"
        raise WorkFailed(
            _("this is no OCI archive: it has no index.json, or is cut short"), where=str(path), next_step=step
        )
    try:
        return parse_manifest(cast(IO[bytes], tar.extractfile(members[INDEX_FILE])).read(), INDEX_TYPES[0])
    except ValueError as error:
        raise WorkFailed(
            _("its index.json is damaged: {error}").format(error=error), where=str(path), next_step=_AGAIN
        ) from error


def _check_blob(source: IO[bytes], wanted: str, path: Path, on_bytes: ByteCallback) -> None:
    hashed = DigestReader()
    while chunk := source.read(CHUNK):
        hashed.update(chunk)
        on_bytes(len(chunk))
    if hashed.digest != wanted:
        raise WorkFailed(
            _("blob {wanted} is damaged: its bytes are {digest}").format(wanted=wanted, digest=hashed.digest),
            where=str(path),
            next_step=_AGAIN,
        )


def _images(archive: ImageArchive, index: Manifest) -> Iterator[Manifest]:
    for item in index.manifests:
        _require(archive, item)
        try:
            manifest = parse_manifest(archive.read_blob(item.digest), item.media_type)
        except ValueError as error:
            what = _("blob {digest} is no manifest: {error}").format(digest=item.digest, error=error)
            raise WorkFailed(what, where=str(archive.path), next_step=_AGAIN) from error
        if manifest.descriptor.media_type in INDEX_TYPES:
            yield from _images(archive, manifest)
            continue
        for blob in (*([manifest.config] if manifest.config else ()), *manifest.layers):
            _require(archive, blob)
        yield manifest


def _require(archive: ImageArchive, blob: Descriptor) -> None:
    if archive.blobs.get(blob.digest, (0, -1))[1] != blob.size:
        raise WorkFailed(
            _("blob {digest} is missing").format(digest=blob.digest), where=str(archive.path), next_step=_AGAIN
        )


def read_diff_ids(archive: ImageArchive, manifest: Manifest) -> list[str]:
    if manifest.config is None:
        raise WorkFailed(
            _("blob {digest} is no image").format(digest=manifest.digest), where=str(archive.path), next_step=_AGAIN
        )
    return list(parse_json(archive.read_blob(manifest.config.digest))["rootfs"]["diff_ids"])


def create_truncated_error(path: Path, blob: str) -> WorkFailed:
    return WorkFailed(_("the archive is cut short in blob {blob}").format(blob=blob), where=str(path), next_step=_AGAIN)


_AGAIN = _("copy the archive again, or write it again with `rlbox save`; nothing was loaded")


_BLOCK = 512


@dataclass(frozen=True, kw_only=True)
class LoadedImage:
    """An image that the engine has now; `manifest_digest` is its manifest's, `image_id` the engine's own id for it."""

    tag: str
    manifest_digest: str
    image_id: str
    layer_count: int


def load_image_archive(
    archive: ImageArchive, rename_tag: Callable[[str], str], on_bytes: ByteCallback = lambda count: None
) -> LoadedImage:
    """Load the archive's image and prove that the engine has it.

    `rename_tag` maps its name in the archive to the one in the engine; another image that has that name keeps it.

    Raises WorkFailed: it holds no image with a name, or several; or the engine has something else afterwards.
    Raises NodeError: the engine's disk is full.
    """
    if len(archive.tags) != 1 or len(archive.manifests) != 1:
        raise WorkFailed(
            _("this archive holds {count} images with {tags_count} names; rlbox loads one").format(
                count=len(archive.manifests), tags_count=len(archive.tags)
            ),
            where=str(archive.path),
            next_step=f"docker load --input {archive.path}",
        )
    tag, manifest = rename_tag(archive.tags[0]), archive.manifests[0]
    whole = _keeps_manifests()
    chunks = _file_chunks(archive.path, on_bytes)
    _send(rename_archive_image(chunks, tag) if whole else convert_to_docker_archive(archive, manifest, tag, on_bytes))
    config = manifest.config.digest if manifest.config else ""
    wanted = archive.index.manifests[0].digest if whole else config
    image = connect_engine().find_image(tag)
    if image is None or image["Id"] != wanted:
        found = image["Id"] if image else _("nothing")
        raise WorkFailed(
            _("the engine has {found} as {tag} after loading; the archive holds {wanted}").format(
                found=found, tag=tag, wanted=wanted
            )
        )
    return LoadedImage(tag=tag, manifest_digest=manifest.digest, image_id=wanted, layer_count=len(manifest.layers))


def _keeps_manifests() -> bool:
    """Return whether the engine has the containerd store, which loads an OCI archive as it is.

    Source: Docker 20.10 says `open .../blobs/json: no such file` to one.
    """
    return any("io.containerd.snapshotter" in str(line) for line in connect_engine().info().get("DriverStatus") or ())


def _send(chunks: Iterator[bytes]) -> None:
    for message in connect_engine().load_image(chunks):
        if words := message.get("error"):
            if "no space left" in words:
                raise NodeError(
                    _("the engine's disk is full: {words}").format(words=words),
                    next_step=_("free space there, then repeat"),
                )
            raise WorkFailed(_("the engine could not load the image: {words}").format(words=words))


def _file_chunks(path: Path, on_bytes: ByteCallback) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            on_bytes(len(chunk))
            yield chunk


def convert_to_docker_archive(
    archive: ImageArchive, manifest: Manifest, tag: str, on_bytes: ByteCallback, omit: Collection[str] = ()
) -> Iterator[bytes]:
    """Return a tar that every engine loads: the configuration as it is, and each layer's plain contents.

    All layers are proven before the first byte; `WorkFailed` names the one whose contents are wrong. `omit`: digests of
    layers as they are in the archive; an engine without the containerd store does not open the file of one that it has.
    """
    contents = read_diff_ids(archive, manifest)
    kept = {content for layer, content in zip(manifest.layers, contents, strict=True) if layer.digest not in omit}
    sizes = [
        _plain_size(archive, manifest, number, content) if content in kept else 0
        for number, content in enumerate(contents)
    ]
    return _docker_tar(archive, manifest, tag, contents, sizes, kept, on_bytes)


def read_archive(archive: ImageArchive, omit: Collection[str] = ()) -> Iterator[bytes]:
    """Yield the archive without the blobs whose digests are in `omit`."""
    with tarfile.open(archive.path, mode="r:") as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            if file and _digest(member.name.removeprefix("./")) not in omit:
                yield format_tar_file_header(member.name, member.size)
                yield from iter(lambda file=file: file.read(CHUNK), b"")  # type: ignore[misc]
                yield bytes(-member.size % _BLOCK)
    yield bytes(2 * _BLOCK)


def _plain_size(archive: ImageArchive, manifest: Manifest, number: int, content: str) -> int:
    layer = manifest.layers[number]
    hashed = DigestReader()
    try:
        for chunk in decompress_layer(ChunkReader(archive.iter_blob(layer.digest)), layer.media_type):
            hashed.update(chunk)
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
    archive: ImageArchive,
    manifest: Manifest,
    tag: str,
    contents: list[str],
    sizes: list[int],
    kept: Collection[str],
    on_bytes: ByteCallback,
) -> Iterator[bytes]:
    config = manifest.config.digest if manifest.config else ""
    names = [f"{content.removeprefix('sha256:')}.tar" for content in contents]
    config_name = f"{config.removeprefix('sha256:')}.json"
    yield from _tar_file(config_name, archive.read_blob(config))
    rows = zip(contents, zip(manifest.layers, names, sizes, strict=True), strict=True)
    for layer, name, size in {content: row for content, row in rows if content in kept}.values():
        yield format_tar_file_header(name, size)
        for chunk in decompress_layer(ChunkReader(archive.iter_blob(layer.digest)), layer.media_type):
            on_bytes(len(chunk))
            yield chunk
        yield bytes(-size % _BLOCK)
    yield from _tar_file(DOCKER_MANIFEST_FILE, create_docker_manifest(config_name, [tag], names))
    yield bytes(2 * _BLOCK)


def _tar_file(name: str, data: bytes) -> Iterator[bytes]:
    yield format_tar_file_header(name, len(data)) + data + bytes(-len(data) % _BLOCK)
