"""The OCI archive of an image: saved from an engine, verified blob by blob, loaded into an engine.

An engine with the containerd store, and any engine from Docker 25 on, writes one; every engine from Docker 23 on loads
one, since it has `manifest.json` beside `index.json`. Measured with Docker 26: an engine without that store unpacks
zstd layers itself, and takes an archive without the layers that it has. Docker 20.10 knows neither: it gets the layers
unpacked.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from rlbox.engine.connection import connect_engine
from rlbox.engine.oci import (
    CONTAINERD_NAME_ANNOTATION,
    INDEX_TYPES,
    REF_NAME_ANNOTATION,
    Descriptor,
    Manifest,
    parse_manifest,
)
from rlbox.engine.reference import strip_docker_hub_prefix
from rlbox.errors import MachineError, WorkFailed
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.system.compression import zstd
from rlbox.system.files import open_locked_atomic

ByteCallback = Callable[[int], None]
ManifestDigest = str
INDEX_FILE = "index.json"
DOCKER_MANIFEST_FILE = "manifest.json"
BLOBS_DIR = "blobs/sha256/"
_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1 << 20
_FIRST_WITH_ZSTD = 23


@dataclass(frozen=True, kw_only=True)
class ImageArchive:
    """A verified archive; `blobs` is where in the file each blob lies (digest to offset and size)."""

    path: Path
    index: Manifest
    manifests: tuple[Manifest, ...]
    blobs: Mapping[str, tuple[int, int]]
    tags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LoadedImage:
    tag: str
    manifest_digest: str
    image_id: str
    layer_count: int


def save_image_archive(
    required_free_bytes: int, tag: str, archive_tag: str, path: Path, on_bytes: ByteCallback = lambda count: None
) -> ManifestDigest:
    """Write the engine's image `tag` to `path`, in which it is called `archive_tag`; the file is whole or not there."""
    with open_locked_atomic(path, required_free_bytes) as file:
        exported = _count_chunks(connect_engine().export_image(tag), on_bytes)
        file.writelines(rename_image_in_oci_archive(exported, archive_tag))
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:") as tar:
            if INDEX_FILE not in tar.getnames():
                raise WorkFailed(
                    _("the engine writes no OCI archive"),
                    where=tag,
                    next_step=_("use Docker 25 or newer, or: docker save --output FILE {tag}").format(tag=tag),
                )
            index = parse_manifest(cast(IO[bytes], tar.extractfile(INDEX_FILE)).read(), INDEX_TYPES[0])
    return index.manifests[0].digest


def read_verified_archive(path: Path, on_bytes: ByteCallback = lambda count: None) -> ImageArchive:
    """Return the archive, every blob of it held to its sha256; WorkFailed names what is damaged or missing."""
    try:
        if not path.is_file():
            raise tarfile.ReadError(_("not a regular file"))
        with tarfile.open(path, mode="r:") as tar:
            members = {member.name.removeprefix("./"): member for member in tar if member.isfile()}
            index = _read_index(tar, members, path)
            blobs = {digest: member for name, member in members.items() if (digest := _find_digest(name))}
            for digest, member in blobs.items():
                _check_blob(cast(IO[bytes], tar.extractfile(member)), digest, path, on_bytes)
            manifests = tuple(_list_images(tar, blobs, index, path))
    except tarfile.TarError as error:
        what = _("this is not an archive, or it is truncated: {error}").format(error=error)
        raise _create_damage_error(path, what) from error
    names = (item.annotations.get(CONTAINERD_NAME_ANNOTATION) for item in index.manifests)
    return ImageArchive(
        path=path,
        index=index,
        manifests=manifests,
        blobs={digest: (member.offset_data, member.size) for digest, member in blobs.items()},
        tags=tuple(strip_docker_hub_prefix(name) for name in names if name),
    )


def read_blob(archive: ImageArchive, digest: str) -> bytes:
    offset, size = archive.blobs[digest]
    with open(archive.path, "rb") as file:
        file.seek(offset)
        return file.read(size)


def read_diff_ids(archive: ImageArchive, manifest: Manifest) -> list[str]:
    if manifest.config is None:
        raise _create_damage_error(archive.path, _("blob {digest} is not an image").format(digest=manifest.digest))
    return list(parse_untrusted_json(read_blob(archive, manifest.config.digest))["rootfs"]["diff_ids"])


def stream_archive(archive: ImageArchive, omit_digests: Collection[str] = ()) -> Iterator[bytes]:
    with tarfile.open(archive.path, mode="r:") as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            if file and _find_digest(member.name.removeprefix("./")) not in omit_digests:
                yield from _tar_file(member.name, member.size, _read_chunks(file))
    yield bytes(2 * _BLOCK)


def can_engine_unpack_zstd(engine_version: str) -> bool:
    major = engine_version.partition(".")[0]
    return not major.isdigit() or int(major) >= _FIRST_WITH_ZSTD


def stream_as_docker_archive(archive: ImageArchive, tag: str, omit_digests: Collection[str] = ()) -> Iterator[bytes]:
    """Yield the archive's image as a tar that every engine loads: its configuration, and layers that are not packed.

    `omit_digests`: of layers as they are in the archive; an engine that has a layer does not open its file.
    """
    manifest = archive.manifests[0]
    config = read_blob(archive, cast(Descriptor, manifest.config).digest)
    names = [f"{digest.removeprefix('sha256:')}.tar" for digest in read_diff_ids(archive, manifest)]
    yield from _tar_file("config.json", len(config), [config])
    for name, layer in dict(zip(names, manifest.layers, strict=True)).items():
        if layer.digest not in omit_digests:
            size = sum(map(len, _unpack_layer(archive, layer)))  # of a file in a tar, before its first byte
            yield from _tar_file(name, size, _unpack_layer(archive, layer))
    listing = json.dumps([{"Config": "config.json", "RepoTags": [tag], "Layers": names}]).encode()
    yield from _tar_file(DOCKER_MANIFEST_FILE, len(listing), [listing])
    yield bytes(2 * _BLOCK)


def _unpack_layer(archive: ImageArchive, layer: Descriptor) -> Iterator[bytes]:
    offset, size = archive.blobs[layer.digest]
    with open(archive.path, "rb") as file:
        file.seek(offset)
        packed = cast(BinaryIO, _ChunkReader(iter(lambda: file.read(min(_CHUNK, offset + size - file.tell())), b"")))
        try:
            if layer.media_type.endswith("zstd"):
                yield from _read_chunks(cast(BinaryIO, zstd.ZstdFile(packed)))
            elif layer.media_type.endswith("gzip"):
                yield from _read_chunks(cast(BinaryIO, gzip.GzipFile(fileobj=packed)))
            else:
                yield from _read_chunks(packed)
        except (zstd.ZstdError, gzip.BadGzipFile, zlib.error, EOFError) as error:
            what = _("blob {digest} cannot be unpacked: {error}").format(digest=layer.digest, error=error)
            raise _create_damage_error(archive.path, what) from error


def load_and_verify_image_archive(
    archive: ImageArchive, rename_tag: Callable[[str], str], on_bytes: ByteCallback = lambda count: None
) -> LoadedImage:
    """Load the archive's image and verify that the engine has it.

    `rename_tag` maps its name in the archive to the one in the engine; another image that has that name keeps it.
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
    if can_engine_unpack_zstd(connect_engine().version()):
        with open(archive.path, "rb", buffering=0) as file:
            _send(rename_image_in_oci_archive(_count_chunks(_read_chunks(file), on_bytes), tag))
    else:
        _send(_count_chunks(stream_as_docker_archive(archive, tag), on_bytes))
    # the containerd store calls an image by its manifest or index, the other store by its configuration
    digests = (archive.index.manifests[0].digest, manifest.config.digest if manifest.config else "")
    image = connect_engine().find_image(tag)
    if image is None or image["Id"] not in digests:
        raise WorkFailed(
            _("the engine has {found} as {tag} after loading; the archive holds {wanted}").format(
                found=image["Id"] if image else _("nothing"), tag=tag, wanted=digests[0]
            )
        )
    return LoadedImage(tag=tag, manifest_digest=manifest.digest, image_id=image["Id"], layer_count=len(manifest.layers))


def rename_image_in_oci_archive(chunks: Iterator[bytes], tag: str) -> Iterator[bytes]:
    """Yield an OCI archive in which its one image is called `tag`; not a byte of a blob changes."""
    with tarfile.open(fileobj=cast(IO[bytes], _ChunkReader(chunks)), mode="r|", bufsize=_CHUNK) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            if file is None:
                continue
            if change := _CHANGES.get(member.name):
                data = json.dumps(change(parse_untrusted_json(file.read()), tag)).encode()
                yield from _tar_file(member.name, len(data), [data])
            else:
                yield from _tar_file(member.name, member.size, _read_chunks(file))
    yield bytes(2 * _BLOCK)


class _ChunkReader:
    """Chunks as a file that can be read once."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, amount: int) -> bytes:
        if not self._rest:
            self._rest = next(self._chunks, b"")
        head, self._rest = self._rest[:amount], self._rest[amount:]
        return head


def _rename_in_index(index: dict[str, Any], tag: str) -> dict[str, Any]:
    names = {CONTAINERD_NAME_ANNOTATION: f"docker.io/{tag}", REF_NAME_ANNOTATION: tag.rpartition(":")[2]}
    manifests = [{**item, "annotations": {**item.get("annotations", {}), **names}} for item in index["manifests"]]
    return {**index, "manifests": manifests}


_CHANGES: dict[str, Any] = {
    INDEX_FILE: _rename_in_index,
    DOCKER_MANIFEST_FILE: lambda images, tag: [{**image, "RepoTags": [tag]} for image in images],
}


def _tar_file(name: str, size: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a file of a tar; owner, mode and time are the same everywhere."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o444
    yield info.tobuf(tarfile.GNU_FORMAT)
    yield from chunks
    yield bytes(-size % _BLOCK)


def _read_chunks(file: IO[bytes] | BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _count_chunks(chunks: Iterator[bytes], on_bytes: ByteCallback) -> Iterator[bytes]:
    for chunk in chunks:
        on_bytes(len(chunk))
        yield chunk


def _read_index(tar: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo], path: Path) -> Manifest:
    if INDEX_FILE not in members:
        step = f"docker load --input {path}" if DOCKER_MANIFEST_FILE in members else "rlbox save TARGET FILE"
        raise WorkFailed(
            _("this is not an OCI archive: it has no index.json, or is truncated"), where=str(path), next_step=step
        )
    try:
        return parse_manifest(cast(IO[bytes], tar.extractfile(members[INDEX_FILE])).read(), INDEX_TYPES[0])
    except ValueError as error:
        raise _create_damage_error(path, _("its index.json is damaged: {error}").format(error=error)) from error


def _find_digest(name: str) -> str | None:
    return f"sha256:{name.removeprefix(BLOBS_DIR)}" if name.startswith(BLOBS_DIR) else None


def _check_blob(source: IO[bytes], digest: str, path: Path, on_bytes: ByteCallback) -> None:
    hasher = hashlib.sha256()
    for chunk in _read_chunks(source):
        hasher.update(chunk)
        on_bytes(len(chunk))
    if (found := f"sha256:{hasher.hexdigest()}") != digest:
        what = _("blob {wanted} is damaged: its bytes are {digest}").format(wanted=digest, digest=found)
        raise _create_damage_error(path, what)


def _list_images(
    tar: tarfile.TarFile, blobs: Mapping[str, tarfile.TarInfo], index: Manifest, path: Path
) -> Iterator[Manifest]:
    """Yield the manifests of images that an index names, also through other indexes; all their blobs are there."""
    _require_blobs(blobs, index.manifests, path)
    for item in index.manifests:
        try:
            manifest = parse_manifest(cast(IO[bytes], tar.extractfile(blobs[item.digest])).read(), item.media_type)
        except ValueError as error:
            what = _("blob {digest} is not a manifest: {error}").format(digest=item.digest, error=error)
            raise _create_damage_error(path, what) from error
        if manifest.descriptor.media_type in INDEX_TYPES:
            yield from _list_images(tar, blobs, manifest, path)
            continue
        _require_blobs(blobs, (*([manifest.config] if manifest.config else ()), *manifest.layers), path)
        yield manifest


def _require_blobs(blobs: Mapping[str, tarfile.TarInfo], wanted: Sequence[Descriptor], path: Path) -> None:
    for blob in wanted:
        if blob.digest not in blobs or blobs[blob.digest].size != blob.size:
            raise _create_damage_error(path, _("blob {digest} is missing").format(digest=blob.digest))


def _create_damage_error(path: Path, what: str) -> WorkFailed:
    step = _("copy the archive again, or write it again with `rlbox save`; nothing was loaded")
    return WorkFailed(what, where=str(path), next_step=step)


def _send(chunks: Iterator[bytes]) -> None:
    for message in connect_engine().load_image(chunks):
        if words := message.get("error"):
            if "no space left" in words:
                raise MachineError(
                    _("the engine's disk is full: {words}").format(words=words),
                    next_step=_("free space there, then repeat"),
                )
            raise WorkFailed(_("the engine could not load the image: {words}").format(words=words))
