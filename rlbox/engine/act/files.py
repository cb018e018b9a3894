"""An image's blobs as files in containerd's store, where this user can read them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlbox.engine.act.stream import engine_says
from rlbox.engine.oci import Descriptor, Manifest, parse_manifest

_STORE = "io.containerd.content.v1.content/blobs/sha256"
_SYSTEM = "/var/lib/containerd"


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """An image whose blobs are files in `folder`, named after their digests."""

    folder: Path
    manifest: Manifest
    config: Descriptor

    def path(self, blob: Descriptor) -> Path:
        """Return the file of a blob."""
        return self.folder / blob.digest.removeprefix("sha256:")


def find_blobs(digest: str) -> StoredImage | None:
    """Return the image with the manifest `digest`, or None where this user cannot read every blob of it."""
    if found := _stored_image(Path(_SYSTEM, _STORE), digest):
        return found
    root = engine_says("/info").get("DockerRootDir") or "/var/lib/docker"
    return _stored_image(Path(root, "containerd/daemon", _STORE), digest)


def _stored_image(folder: Path, digest: str) -> StoredImage | None:
    try:
        manifest = parse_manifest((folder / digest.removeprefix("sha256:")).read_bytes())
        if manifest.config is None or manifest.digest != digest:
            return None
        found = StoredImage(folder=folder, manifest=manifest, config=manifest.config)
        sizes = [found.path(blob).stat().st_size for blob in (manifest.config, *manifest.layers)]
    except (OSError, ValueError):
        return None
    return found if sizes == [blob.size for blob in (manifest.config, *manifest.layers)] else None
