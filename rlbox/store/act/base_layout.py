"""Lay a base image of the store out as a folder that BuildKit builds on, so that no registry is asked."""

from __future__ import annotations

import json
from pathlib import Path

from rlbox.engine.oci import parse_manifest
from rlbox.files.act.folders import cache_folder, write_atomic
from rlbox.store.act.base_image import base_files
from rlbox.store.act.objects import Store


def write_base_layout(base: str, platform: str, store: Store) -> Path:
    """Return a folder with the base image `NAME@sha256:DIGEST` as an OCI image layout; its blobs are links.

    The store must hold the image. A folder that is there already is used as it is.
    """
    digest = base.rpartition("@sha256:")[2]
    folder = cache_folder("bases", f"{digest[:24]}-{platform.partition('-')[0]}")
    index = folder / "index.json"
    if index.is_file():
        return folder
    blobs = folder / "blobs/sha256"
    for file in base_files(store, base, platform):
        store.link(file.sha256, blobs / file.sha256)
    write_atomic(folder / "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}))
    manifest = parse_manifest(store.path(digest).read_bytes())
    row = {"mediaType": manifest.descriptor.media_type, "digest": f"sha256:{digest}", "size": len(manifest.body)}
    write_atomic(index, json.dumps({"schemaVersion": 2, "manifests": [row]}))
    return folder
