"""Attach files (SBOM, provenance) to an image in a registry, so that whoever has its digest finds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlbox.act.registry import Registry
from rlbox.plan.oci import (
    EMPTY,
    EMPTY_BLOB,
    MANIFEST,
    TITLE,
    Descriptor,
    Manifest,
    artifact_manifest,
    describe,
    sha256_of,
)
from rlbox.plan.reference import Reference

SPDX = "application/spdx+json"
IN_TOTO = "application/vnd.in-toto+json"
KNOWN = {"sbom.spdx.json": SPDX, "provenance.json": IN_TOTO}


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """A file that explains an image; `artifact_type` is what others look for."""

    path: Path
    artifact_type: str


def find_attachments(folder: Path) -> tuple[Attachment, ...]:
    """Return the SBOM and the provenance that a build left in `folder`, those that are there."""
    return tuple(
        Attachment(path=folder / name, artifact_type=kind) for name, kind in KNOWN.items() if (folder / name).is_file()
    )


def about(files: Sequence[Attachment], manifest: Manifest) -> tuple[Attachment, ...]:
    """Return those of `files` that name the image: its digest, or that of its configuration.

    Another engine, or an archive that was loaded, may have given its tag to an image that they say nothing of.
    """
    digests = [manifest.digest, *([manifest.config.digest] if manifest.config else [])]
    names = [digest.partition(":")[2] for digest in digests]
    return tuple(item for item in files if any(name in item.path.read_text(encoding="utf-8") for name in names))


def attach(registry: Registry, reference: Reference, digest: str, files: Sequence[Attachment]) -> tuple[str, ...]:
    """Attach `files` to the image `digest` and return the digests of what now refers to it, in order.

    The same files again change nothing; a changed file takes the place of the older one in the list.

    Raises
    ------
    RegistryError
        The registry refused, or does not have the image.
    """
    if not files:
        return ()
    repository = reference.repository
    subject = registry.get_manifest(repository, digest).descriptor
    registry.put_blob(repository, describe(EMPTY_BLOB, EMPTY), EMPTY_BLOB)
    attached = []
    for item in files:
        data = item.path.read_bytes()
        title = {TITLE: item.path.name}
        content = Descriptor(media_type=item.artifact_type, digest=sha256_of(data), size=len(data), annotations=title)
        registry.put_blob(repository, content, data)
        body = artifact_manifest(subject, content, item.artifact_type)
        listed = describe(body, MANIFEST, artifact_type=item.artifact_type, annotations=title)
        registry.put_referrer(repository, digest, body, listed)
        attached.append(listed.digest)
    return tuple(attached)
