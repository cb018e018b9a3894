"""Base images in the store: fetch the manifest and every blob under its own sha256; read single files of the layers."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, cast

from rlbox.amounts import decimal_size_text
from rlbox.app import App
from rlbox.artifacts.fetch import make_fetch_progress_item, require_disk_space
from rlbox.artifacts.mirrors import DownloadLocation, list_image_references_or_original
from rlbox.artifacts.object_store import ObjectStore, PartialObject
from rlbox.artifacts.profile import load_profile
from rlbox.engine.oci import INDEX_TYPES, LAYOUT, LAYOUT_FILE, Manifest, parse_manifest
from rlbox.engine.reference import parse_reference
from rlbox.engine.registry_client import Registry, create_digest_mismatch_error
from rlbox.errors import MachineError, RegistryError, RlboxError, WorkFailed
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.system.compression import zstd
from rlbox.system.files import cache_path, write_atomic
from rlbox.system.network_settings import read_pip_and_proxy_settings
from rlbox.system.progress import show_progress
from rlbox.target.artifact import Artifact
from rlbox.target.lock import Lock

_PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}


def list_base_files_in_stored_manifests(
    store: ObjectStore, base_image: str, only_platform: str = ""
) -> tuple[Artifact, ...]:
    """Return the files of a base image as far as the store knows them: none before its manifest was fetched.

    `base_image`: `NAME@sha256:DIGEST`; a bootstrapped base has no files.
    `only_platform`: uv's name of the platform, which chooses from an image for several; all of them when empty.
    """
    __, at, digest = base_image.partition("@sha256:")
    return tuple(_walk(store, base_image, digest, only_platform)) if at else ()


def ensure_base_files_in_store(
    base_image: str,
    platform: str,
    store: ObjectStore,
    image_urls: Iterable[DownloadLocation],
    ca_bundle: str = "",
    on_bytes: Callable[[Artifact, int], None] = lambda artifact, done: None,
    on_missing: Callable[[Sequence[Artifact]], None] = lambda missing: None,
) -> tuple[Artifact, ...]:
    """Return the files of a base image when the store holds all of them; a place that fails is passed over.

    `on_bytes` is told how much of a file is there, each time some came; `on_missing` of the files that are known to be
    missing, before they are fetched.

    Raises MachineError: the store's disk has no room for them.
    Raises RegistryError: no place gives the image; each is named with why.
    """
    if not (missing := list_next_missing_base_files(store, base_image, platform)):
        return list_base_files_in_stored_manifests(store, base_image, platform)
    tries = []
    for source in image_urls:
        try:
            while missing := list_next_missing_base_files(store, base_image, platform):
                on_missing(missing)
                require_disk_space(store, missing)
                _fetch_from(source.url, missing, store, ca_bundle, on_bytes)
            return list_base_files_in_stored_manifests(store, base_image, platform)
        except MachineError:
            raise
        except RlboxError as error:
            tries.append(f"\n  {source.mirror}: {error.what}")
    raise RegistryError(
        _("the base image {base} cannot be fetched{tries}").format(base=base_image, tries="".join(tries)),
        where=missing[0].file,
    )


def list_next_missing_base_files(store: ObjectStore, base_image: str, only_platform: str = "") -> list[Artifact]:
    """Return the files of a base image that are known and that the store lacks; its manifest, where that is one."""
    digest = base_image.rpartition(":")[2]
    if not store.verify_and_mark_if_intact(digest):
        return [_file(base_image, "manifest", digest, 0)]
    return [
        file
        for file in list_base_files_in_stored_manifests(store, base_image, only_platform)
        if not store.verify_and_mark_if_intact(file.sha256, file.size)
    ]


def _walk(store: ObjectStore, base: str, digest: str, platform: str) -> Iterator[Artifact]:
    if not store.has(digest):
        return
    manifest = parse_manifest(store.path(digest).read_bytes())
    yield _file(base, "manifest", digest, len(manifest.body))
    for number, layer in enumerate((manifest.config, *manifest.layers)):
        if layer:
            kind = f"layer {number}" if number else "config"
            yield _file(base, kind, layer.digest.removeprefix("sha256:"), layer.size)
    for child, size in _children(manifest, platform):
        if store.has(child):
            yield from _walk(store, base, child, platform)
        elif platform:
            yield _file(base, "manifest", child, size)


def _children(manifest: Manifest, platform: str) -> Iterator[tuple[str, int]]:
    if manifest.descriptor.media_type not in INDEX_TYPES:
        return
    processor = platform.partition("-")[0]
    for row in parse_untrusted_json(manifest.body)["manifests"]:
        made_for = row.get("platform", {})
        fits = (made_for.get("os"), made_for.get("architecture")) == ("linux", _PROCESSORS.get(processor, processor))
        if fits or not platform:
            yield row["digest"].removeprefix("sha256:"), row["size"]


def _file(base: str, part: str, digest: str, size: int) -> Artifact:
    name = base.partition("@")[0]
    return Artifact(kind="oci", name=name, file=f"{name} {part}", sha256=digest, size=size, group="base", origin=base)


def _fetch_from(
    url: str, files: Iterable[Artifact], store: ObjectStore, ca_bundle: str, on_bytes: Callable[[Artifact, int], None]
) -> None:
    reference = parse_reference(url)
    with Registry(reference.host, ca_bundle=ca_bundle) as registry:
        for file in files:
            with store.wait_for_partial(file.sha256) as partial:
                if store.verify_and_mark_if_intact(file.sha256):
                    continue
                if file.file.endswith("manifest"):
                    partial.truncate()
                    partial.write(registry.require_manifest(reference.repository, f"sha256:{file.sha256}").body)
                else:
                    resume_and_verify_blob_download(registry, reference.repository, file, partial, on_bytes)
                partial.commit()


def resume_and_verify_blob_download(
    registry: Registry,
    repository: str,
    file: Artifact,
    partial: PartialObject,
    on_bytes: Callable[[Artifact, int], None] = lambda artifact, done: None,
) -> None:
    """Fill `partial` with a blob, going on where it ends; `RegistryError` when its bytes are wrong."""

    def append() -> None:
        with registry.open_unverified_blob(repository, f"sha256:{file.sha256}", start=partial.size) as (start, blocks):
            if start != partial.size:
                partial.truncate()
            for block in blocks:
                partial.write(block)
                on_bytes(file, partial.size)

    resumed = partial.size > 0
    if partial.size < file.size:
        registry.retry(append)
    if partial.digest_so_far != file.sha256 and resumed:
        partial.truncate()
        registry.retry(append)
    if partial.digest_so_far != file.sha256:
        found = partial.digest_so_far
        partial.truncate()
        raise create_digest_mismatch_error(f"{registry.host}/{repository}", f"sha256:{file.sha256}", f"sha256:{found}")


def fetch_base_image_if_any(app: App, lock: Lock, store: ObjectStore, sources_profile: str) -> tuple[Artifact, ...]:
    if "@" not in lock.base:
        return ()
    places = list_image_references_or_original(lock.base, load_profile(app.project, sources_profile))

    def print_missing(missing: Sequence[Artifact]) -> None:
        if size := sum(file.size for file in missing):
            name = lock.base.partition("@")[0]
            app.print_status(
                _("fetching {count} files of {name}, {size}").format(
                    count=len(missing), name=name, size=decimal_size_text(size)
                )
            )

    with show_progress(app) as show:

        def on_bytes(file: Artifact, done: int) -> None:
            show(make_fetch_progress_item(file, "done" if done == file.size else "running", done))

        ca_bundle = read_pip_and_proxy_settings().ca_bundle
        return ensure_base_files_in_store(lock.base, lock.platform, store, places, ca_bundle, on_bytes, print_missing)


def link_or_reuse_cached_oci_layout(base_image: str, platform: str, store: ObjectStore) -> Path:
    """Return a folder with the base image `NAME@sha256:DIGEST` as an OCI image layout; its blobs are links.

    The store must hold the image. A folder that is there already is used as it is.
    """
    digest = base_image.rpartition("@sha256:")[2]
    folder = cache_path("bases", f"{digest[:24]}-{platform.partition('-')[0]}")
    index = folder / "index.json"
    if index.is_file():
        return folder
    blobs = folder / "blobs/sha256"
    for file in list_base_files_in_stored_manifests(store, base_image, platform):
        store.link_object_replacing_path(file.sha256, blobs / file.sha256)
    write_atomic(folder / LAYOUT_FILE, LAYOUT)
    manifest = parse_manifest(store.path(digest).read_bytes())
    row = {"mediaType": manifest.descriptor.media_type, "digest": f"sha256:{digest}", "size": len(manifest.body)}
    write_atomic(index, json.dumps({"schemaVersion": 2, "manifests": [row]}))
    return folder


_ZSTD = b"\x28\xb5\x2f\xfd"
WHITEOUT_PREFIX = ".wh."  # a layer's mark that a file of a lower one is removed; source: OCI image layer specification


def _open_layer_tar(layer: Path) -> IO[bytes]:
    """Return a layer's tar, packed as it is when it is not zstd (tarfile reads gzip itself)."""
    with layer.open("rb") as file:
        packed = file.read(4) == _ZSTD
    return cast("IO[bytes]", zstd.ZstdFile(layer)) if packed else layer.open("rb")


def extract_existing_image_files(
    base_image: str, platform: str, store: ObjectStore, paths: tuple[str, ...], directory: Path
) -> None:
    """Write the files of a base image that lie below the paths `paths` into `directory`, as the image has them at last.

    `paths`: Paths without a slash at the front: `var/lib/dpkg/status`, `etc/apt`.
    Raises WorkFailed: A layer is no archive, or holds what no folder can.
    """
    for file in list_base_files_in_stored_manifests(store, base_image, platform):
        if " layer " not in file.file:
            continue
        try:
            with _open_layer_tar(store.path(file.sha256)) as stream, tarfile.open(fileobj=stream, mode="r|*") as tar:
                for member in _below(tar, paths):
                    _take(tar, member, directory)
        except (tarfile.TarError, zstd.ZstdError, EOFError, OSError, ValueError) as error:
            raise WorkFailed(
                _("{file} cannot be unpacked: {error}").format(file=file.file, error=error), where=base_image
            ) from error


def _below(tar: tarfile.TarFile, wanted: tuple[str, ...]) -> Iterator[tarfile.TarInfo]:
    for member in tar:
        path = PurePosixPath(member.name.lstrip("./"))
        if ".." not in path.parts and any(path.is_relative_to(root) for root in wanted):
            yield member


def _take(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    path = folder / member.name.lstrip("./")
    if any(part.is_symlink() for part in path.parents if part != folder and part.is_relative_to(folder)):
        return  # below a link of the image's making, which may lead out of the folder
    if path.name.startswith(WHITEOUT_PREFIX):
        path.with_name(path.name.removeprefix(WHITEOUT_PREFIX)).unlink(missing_ok=True)
    elif member.isfile() and (file := tar.extractfile(member)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a link would be written through
        path.write_bytes(file.read())
    elif member.issym() and Path(os.path.normpath(path.parent / member.linkname)).is_relative_to(folder):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(member.linkname)
