"""The documents of the OCI image and distribution formats as values.

Source: OCI image-spec 1.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX_TYPE = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFEST_TYPES = (MANIFEST_TYPE, DOCKER_MANIFEST_TYPE)
INDEX_TYPES = (INDEX_TYPE, DOCKER_INDEX_TYPE)
REF_NAME_ANNOTATION = "org.opencontainers.image.ref.name"
CONTAINERD_NAME_ANNOTATION = "io.containerd.image.name"
LAYOUT_FILE, LAYOUT = "oci-layout", b'{"imageLayoutVersion":"1.0.0"}'
"""The file that says of a folder, or a tar, that it is an image layout."""


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """What points to a blob or manifest: its type, sha256 digest and size in bytes."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    descriptor: Descriptor
    body: bytes
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()
    manifests: tuple[Descriptor, ...] = ()

    @property
    def digest(self) -> str:
        return self.descriptor.digest


def compute_sha256_digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def create_descriptor(data: bytes, media_type: str, **fields: Any) -> Descriptor:
    return Descriptor(media_type=media_type, digest=compute_sha256_digest(data), size=len(data), **fields)


def parse_manifest(body: bytes, media_type_if_absent: str = "") -> Manifest:
    """Return what the bytes of a manifest or index say; its own `mediaType` wins over `media_type_if_absent`.

    Raises ValueError: it is no JSON, or none of the manifests known here.
    """
    value = parse_untrusted_json(body)
    if not isinstance(value, dict) or value.get("schemaVersion") != 2:
        raise ValueError(_("no manifest of schema 2"))
    kind = str(
        value.get("mediaType") or media_type_if_absent or (INDEX_TYPE if "manifests" in value else MANIFEST_TYPE)
    )
    try:
        return Manifest(
            descriptor=create_descriptor(body, kind),
            body=body,
            config=_parse_descriptor(value["config"]) if "config" in value else None,
            layers=tuple(_parse_descriptor(item) for item in value.get("layers") or ()),
            manifests=tuple(_parse_descriptor(item) for item in value.get("manifests") or ()),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(_("a manifest without {error}").format(error=error)) from error


def _parse_descriptor(value: Mapping[str, Any]) -> Descriptor:
    return Descriptor(
        media_type=str(value["mediaType"]),
        digest=str(value["digest"]),
        size=int(value["size"]),
        annotations=dict(value.get("annotations") or {}),
    )


def find_manifest_digest_or_empty(engine_image: Mapping[str, Any]) -> str:
    """Return the digest of the manifest that the engine stores, or "" where the store keeps none.

    With the containerd store an image's id is that digest, and each of its names is listed with it.
    """
    identity = str(engine_image["Id"])
    return identity if any(name.endswith(f"@{identity}") for name in engine_image.get("RepoDigests") or ()) else ""
