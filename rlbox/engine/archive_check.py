"""Read an OCI archive and prove that it is whole, before an engine sees a byte of it."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from rlbox.engine.archive_parts import BLOBS, INDEX_FILE, archive_tags
from rlbox.engine.oci import INDEXES, Descriptor, Manifest, parse_manifest
from rlbox.errors import WorkFailed
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.compression import CHUNK, DigestCounter
from rlbox.system.files import describe_special_file

OnBytes = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A proven archive.

    `index` is what its `index.json` says, `manifests` the images in it, `blobs` where in the file each blob lies
    (digest to offset and size), `tags` the names that its images get.
    """

    path: Path
    index: Manifest
    manifests: tuple[Manifest, ...]
    blobs: Mapping[str, tuple[int, int]]
    tags: tuple[str, ...]

    def read(self, digest: str) -> bytes:
        return b"".join(self.chunks(digest))

    def chunks(self, digest: str) -> Iterator[bytes]:
        offset, size = self.blobs[digest]
        with open(self.path, "rb") as file:
            file.seek(offset)
            while size:
                chunk = file.read(min(size, CHUNK))
                if not chunk:
                    raise torn(self.path, digest)
                size -= len(chunk)
                yield chunk


def check_archive(path: Path, on_bytes: OnBytes = lambda count: None) -> Archive:
    """Return the archive, every blob of it held to its sha256.

    Raises
    ------
    WorkFailed
        It is no OCI archive, cut short, or a blob is damaged or missing; the blob is named.
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
                if name.startswith(BLOBS):
                    _check_blob(cast(IO[bytes], tar.extractfile(member)), _digest(name), path, on_bytes)
    except tarfile.TarError as error:
        raise WorkFailed(
            _("this is no archive: {error}").format(error=error), where=str(path), next_step="rlbox save TARGET FILE"
        ) from error
    blobs = {
        f"sha256:{name.removeprefix(BLOBS)}": (member.offset_data, member.size)
        for name, member in members.items()
        if name.startswith(BLOBS)
    }
    archive = Archive(path=path, index=index, manifests=(), blobs=blobs, tags=archive_tags(index.manifests))
    manifests = tuple(_images(archive, index))
    return Archive(path=path, index=index, manifests=manifests, blobs=blobs, tags=archive.tags)


def _members(tar: tarfile.TarFile, path: Path) -> dict[str, tarfile.TarInfo]:
    found: dict[str, tarfile.TarInfo] = {}
    end = path.stat().st_size
    last = ""
    try:
        for member in tar:
            last = member.name.removeprefix("./")
            if member.offset_data + member.size > end:
                raise torn(path, _digest(last))
            if member.isfile():
                found[last] = member
    except tarfile.ReadError as error:
        raise torn(path, _digest(last)) from error
    return found


def _digest(name: str) -> str:
    return f"sha256:{name.removeprefix(BLOBS)}" if name.startswith(BLOBS) else name or "its beginning"


def _index(tar: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo], path: Path) -> Manifest:
    if INDEX_FILE not in members:
        step = f"docker load --input {path}" if "manifest.json" in members else "rlbox save TARGET FILE"
        raise WorkFailed(
            _("this is no OCI archive: it has no index.json, or is cut short"), where=str(path), next_step=step
        )
    try:
        return parse_manifest(cast(IO[bytes], tar.extractfile(members[INDEX_FILE])).read(), INDEXES[0])
    except ValueError as error:
        raise WorkFailed(
            _("its index.json is damaged: {error}").format(error=error), where=str(path), next_step=_AGAIN
        ) from error


def _check_blob(source: IO[bytes], wanted: str, path: Path, on_bytes: OnBytes) -> None:
    hashed = DigestCounter()
    while chunk := source.read(CHUNK):
        hashed.take(chunk)
        on_bytes(len(chunk))
    if hashed.digest != wanted:
        raise WorkFailed(
            _("blob {wanted} is damaged: its bytes are {digest}").format(wanted=wanted, digest=hashed.digest),
            where=str(path),
            next_step=_AGAIN,
        )


def _images(archive: Archive, index: Manifest) -> Iterator[Manifest]:
    for item in index.manifests:
        _require(archive, item)
        try:
            manifest = parse_manifest(archive.read(item.digest), item.media_type)
        except ValueError as error:
            what = _("blob {digest} is no manifest: {error}").format(digest=item.digest, error=error)
            raise WorkFailed(what, where=str(archive.path), next_step=_AGAIN) from error
        if manifest.descriptor.media_type in INDEXES:
            yield from _images(archive, manifest)
            continue
        for blob in (*([manifest.config] if manifest.config else ()), *manifest.layers):
            _require(archive, blob)
        yield manifest


def _require(archive: Archive, blob: Descriptor) -> None:
    if archive.blobs.get(blob.digest, (0, -1))[1] != blob.size:
        raise WorkFailed(
            _("blob {digest} is missing").format(digest=blob.digest), where=str(archive.path), next_step=_AGAIN
        )


def contents_of(archive: Archive, manifest: Manifest) -> list[str]:
    if manifest.config is None:
        raise WorkFailed(
            _("blob {digest} is no image").format(digest=manifest.digest), where=str(archive.path), next_step=_AGAIN
        )
    return list(parse_json(archive.read(manifest.config.digest))["rootfs"]["diff_ids"])


def torn(path: Path, blob: str) -> WorkFailed:
    """Return the error for an archive that ends too early, in or after `blob`."""
    return WorkFailed(_("the archive is cut short in blob {blob}").format(blob=blob), where=str(path), next_step=_AGAIN)


_AGAIN = _("copy the archive again, or write it again with `rlbox save`; nothing was loaded")
