"""The OCI archive of an image: names of its files, its index, and what `docker load` reads in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlbox.engine.oci import CONTAINERD_NAME, REF_NAME, Descriptor, index
from rlbox.engine.reference import familiar_name

INDEX_FILE = "index.json"
DOCKER_MANIFEST_FILE = "manifest.json"
BLOBS = "blobs/sha256/"


def blob_name(digest: str) -> str:
    return BLOBS + digest.removeprefix("sha256:")


def archive_index(manifest: Descriptor, full_name: str) -> bytes:
    """Return the archive's index: one image under its full name (`docker.io/rlbox/local:latest`)."""
    names = {CONTAINERD_NAME: full_name, REF_NAME: full_name.rpartition(":")[2]}
    return index([replace(manifest, annotations=names)])


def docker_manifest(config: str, tags: Sequence[str], layers: Sequence[str]) -> bytes:
    """Return `manifest.json`, which `docker load` reads; `config` and `layers` are names of files in the archive."""
    return json.dumps([{"Config": config, "RepoTags": list(tags), "Layers": list(layers)}]).encode()


def archive_tags(manifests: Sequence[Descriptor]) -> tuple[str, ...]:
    return tuple(familiar_name(item.annotations[CONTAINERD_NAME]) for item in manifests if _named(item.annotations))


def _named(annotations: Mapping[str, str]) -> bool:
    return bool(annotations.get(CONTAINERD_NAME))
