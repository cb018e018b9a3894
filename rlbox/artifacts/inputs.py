"""The files of a lock as an OCI artifact: what a machine without network is given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlbox.engine.oci import MANIFEST, REF_NAME, TITLE, Descriptor, Manifest, describe, document
from rlbox.engine.oci import index as oci_index
from rlbox.target.artifact import Artifact

INPUTS = "application/vnd.rlbox.inputs.v1"
LOCK = "application/vnd.rlbox.lock.v2+json"
FILE = "application/octet-stream"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
KIND, GROUP = "rlbox.kind", "rlbox.group"


@dataclass(frozen=True, kw_only=True)
class InputsPlan:
    """The bytes of the documents of an export: lock, manifest, index."""

    lock: bytes
    manifest: bytes
    index: bytes

    @property
    def lock_blob(self) -> Descriptor:
        return describe(self.lock, LOCK)


def plan_inputs_artifact(target: str, lock: str, files: Sequence[Artifact]) -> InputsPlan:
    """Return the documents that describe `files`; the same lock gives the same bytes."""
    body = lock.encode()
    manifest = document(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": INPUTS,
            "config": describe(body, LOCK).json(),
            "layers": [_layer(file).json() for file in files],
            "annotations": {TITLE: target},
        }
    )
    listed = describe(manifest, MANIFEST, artifact_type=INPUTS, annotations={REF_NAME: target})
    return InputsPlan(lock=body, manifest=manifest, index=oci_index([listed]))


def _layer(file: Artifact) -> Descriptor:
    return Descriptor(
        media_type=FILE,
        digest=f"sha256:{file.sha256}",
        size=file.size,
        annotations={TITLE: file.file.rpartition("/")[2], KIND: file.kind, GROUP: file.group},
    )


def is_inputs(manifest: Manifest) -> bool:
    blobs = (manifest.config, *manifest.layers)
    whole = all(blob is not None and _DIGEST.fullmatch(blob.digest) for blob in blobs)
    return whole and manifest.config is not None and manifest.config.media_type == LOCK


def is_folder(place: str) -> bool:
    """Return whether `--export PLACE` means a folder rather than a reference, by the look of it."""
    return place.startswith(("/", "./", "../", "~")) or place in (".", "..")
