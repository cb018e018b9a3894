"""Attach files (SBOM, provenance) to an image in a registry, so that whoever has its digest finds them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rlbox.engine.oci import (
    EMPTY,
    EMPTY_BLOB,
    MANIFEST,
    TITLE,
    Descriptor,
    Manifest,
    artifact_manifest,
    describe,
    fallback_tag,
    sha256_of,
)
from rlbox.engine.registry_client import Destination, Registry

SPDX = "application/spdx+json"
IN_TOTO = "application/vnd.in-toto+json"
KNOWN = {"sbom.spdx.json": SPDX, "provenance.json": IN_TOTO}


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """A file that explains an image; `artifact_type` is what others look for."""

    path: Path
    artifact_type: str


def find_attachments(folder: Path) -> tuple[Attachment, ...]:
    """Return the SBOMs and provenances that builds of a target left below `folder`, a folder an image."""
    return tuple(
        Attachment(path=path, artifact_type=kind)
        for name, kind in KNOWN.items()
        for path in sorted((*folder.glob(name), *folder.glob(f"*/{name}")))
    )


def about(files: Sequence[Attachment], manifest: Manifest) -> tuple[Attachment, ...]:
    """Return those of `files` that name the image: its digest, or that of its configuration.

    Another engine, or an archive that was loaded, may have given its tag to an image that they say nothing of.
    """
    digests = [manifest.digest, *([manifest.config.digest] if manifest.config else [])]
    names = [digest.partition(":")[2] for digest in digests]
    return tuple(item for item in files if any(name in item.path.read_text(encoding="utf-8") for name in names))


def attach(destination: Destination, subject: Descriptor, files: Sequence[Attachment]) -> tuple[str, ...]:
    """Attach `files` to the image `subject` and return the digests of what now refers to it, in order.

    The same files again change nothing; a changed file takes the place of the older one in the list.

    Raises
    ------
    RegistryError
        The registry refused, or does not have the image.
    """
    if not files:
        return ()
    artifacts = [_artifact(subject, item) for item in files]
    registry, repository = destination.registry, destination.reference.repository
    there = registry.find_manifest(repository, fallback_tag(subject.digest))
    if there is None or any(artifact.listed not in there.manifests for artifact in artifacts):
        _send(registry, repository, subject, artifacts)
    return tuple(artifact.listed.digest for artifact in artifacts)


@dataclass(frozen=True, kw_only=True)
class _Artifact:
    content: Descriptor
    data: bytes
    body: bytes
    listed: Descriptor


def _artifact(subject: Descriptor, item: Attachment) -> _Artifact:
    data = item.path.read_bytes()
    title = {TITLE: item.path.name}
    content = Descriptor(media_type=item.artifact_type, digest=sha256_of(data), size=len(data), annotations=title)
    body = artifact_manifest(subject, content, item.artifact_type)
    listed = describe(body, MANIFEST, artifact_type=item.artifact_type, annotations=title)
    return _Artifact(content=content, data=data, body=body, listed=listed)


def _send(registry: Registry, repository: str, subject: Descriptor, artifacts: Sequence[_Artifact]) -> None:
    blobs = [(describe(EMPTY_BLOB, EMPTY), EMPTY_BLOB), *((artifact.content, artifact.data) for artifact in artifacts)]
    with ThreadPoolExecutor() as pool:  # each takes three answers of a registry that may be far away
        list(pool.map(lambda blob: registry.put_blob(repository, *blob), blobs))
    registry.put_referrers(repository, subject.digest, [(artifact.body, artifact.listed) for artifact in artifacts])
