"""A client of the OCI distribution API: manifests, blobs up and down, referrers.

For images the engine itself pulls and pushes; this is for what an engine does not do: proving what a registry holds,
fetching a base by its digest, attaching small artifacts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from urllib.parse import quote, urlencode

from rlbox.engine.oci import (
    INDEX,
    INDEXES,
    MANIFESTS,
    Descriptor,
    Manifest,
    fallback_tag,
    index,
    parse_manifest,
    sha256_of,
    with_referrer,
)
from rlbox.engine.reference import Reference
from rlbox.engine.registry_wire import Content, Wire
from rlbox.errors import RegistryError
from rlbox.foreign import whole_number
from rlbox.i18n import _
from rlbox.system.http import HttpResponse


class Registry(Wire):
    def __enter__(self) -> Registry:
        return self

    def find_manifest(self, repository: str, reference: str) -> Manifest | None:
        """Return the manifest or index that a tag or digest names, or None when it is not there.

        Raises
        ------
        RegistryError
            What came is no manifest, or has another digest than the one asked for.
        """
        path = f"/v2/{repository}/manifests/{quote(reference, safe=':')}"
        accept = {"Accept": ", ".join((*MANIFESTS, *INDEXES))}
        response = self.send("GET", path, repository=repository, headers=accept, expect=(200, 404))
        if response.status == 404:
            return None
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        try:
            manifest = parse_manifest(response.read(), kind)
        except ValueError as error:
            raise RegistryError(
                _("{host} answered {kind} where a manifest was asked for").format(
                    host=self.host, kind=kind or "something"
                ),
                where=f"{self.host}/{repository}:{reference}",
                next_step=_("a proxy or a login page may stand in front of the registry"),
            ) from error
        if reference.startswith("sha256:") and manifest.digest != reference:
            raise wrong_digest(f"{self.host}/{repository}", reference, manifest.digest)
        return manifest

    def get_manifest(self, repository: str, reference: str) -> Manifest:
        """As `find_manifest`; one that is not there is a `RegistryError`."""
        manifest = self.find_manifest(repository, reference)
        if manifest is None:
            raise RegistryError(
                _("{host}/{repository} has no {reference}").format(
                    host=self.host, repository=repository, reference=reference
                ),
                where=self.host,
                next_step=_("check name and tag"),
            )
        return manifest

    def put_manifest(self, repository: str, reference: str, body: bytes, media_type: str) -> bool:
        """Store a manifest under a tag or digest; return whether the registry itself lists it as a referrer."""
        path = f"/v2/{repository}/manifests/{quote(reference, safe=':')}"
        headers = {"Content-Type": media_type}
        response = self.send("PUT", path, repository=repository, headers=headers, content=body, expect=(200, 201, 202))
        stored = response.headers.get("Docker-Content-Digest", "")
        if stored and stored != sha256_of(body):
            raise wrong_digest(f"{self.host}/{repository}", sha256_of(body), stored)
        return "OCI-Subject" in response.headers

    def _has_blob(self, repository: str, digest: str) -> bool:
        path = f"/v2/{repository}/blobs/{digest}"
        with self.once("HEAD", path, repository, {}, expect=(200, 404)) as response:
            return response.status == 200

    @contextmanager
    def open_blob(self, repository: str, digest: str, start: int = 0) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield where the answer starts, 0 or `start`, and the blob's bytes from there; they are not verified here.

        Raises
        ------
        MayPass
            The connection broke; `retry` is for that.
        """
        path = f"/v2/{repository}/blobs/{digest}"
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self.once("GET", path, repository, headers, expect=(200, 206)) as response:
            yield _starts_at(response), response.blocks()

    def put_blob(self, repository: str, blob: Descriptor, source: Content) -> bool:
        """Upload a blob unless the repository has it; return whether it was sent.

        Parameters
        ----------
        source
            The bytes, or a file with them; it is read again when an upload must be repeated.

        Raises
        ------
        RegistryError
            The registry refused, or stored other bytes.
        OSError
            The file cannot be read.
        """

        def upload() -> bool:
            if self._has_blob(repository, blob.digest):
                return False
            self._upload(repository, blob, source)
            return True

        return self.retry(upload)

    def _upload(self, repository: str, blob: Descriptor, source: Content) -> None:
        with self.once("POST", f"/v2/{repository}/blobs/uploads/", repository, {}, expect=(202,)) as started:
            location = started.headers.get("Location", "")
        if not location:
            raise RegistryError(
                _("{host} names no place to upload to").format(host=self.host), where=f"{self.host}/{repository}"
            )
        place = location + ("&" if "?" in location else "?") + urlencode({"digest": blob.digest})
        headers = {"Content-Type": "application/octet-stream"}
        with self.once("PUT", place, repository, headers, source, expect=(201, 204)) as stored:
            said = stored.headers.get("Docker-Content-Digest", blob.digest)
        if said != blob.digest:
            raise wrong_digest(f"{self.host}/{repository}", blob.digest, said)

    def put_referrers(self, repository: str, subject: str, artifacts: Sequence[tuple[bytes, Descriptor]]) -> None:
        """Store manifests with the same subject, and list those that the registry does not list itself.

        Parameters
        ----------
        artifacts
            Each manifest, and what points to it.
        """
        unlisted = [
            listed
            for body, listed in artifacts
            if not self.put_manifest(repository, listed.digest, body, listed.media_type)
        ]
        if not unlisted:
            return
        tag = fallback_tag(subject)
        before = self.find_manifest(repository, tag)
        known = before.manifests if before else ()
        after = reduce(with_referrer, unlisted, known)
        if not before or after != known:
            self.put_manifest(repository, tag, index(after), INDEX)


@dataclass(frozen=True, kw_only=True)
class Destination:
    """A tag of a registry; `plain_http` says whether http was allowed to a registry on another machine."""

    reference: Reference
    registry: Registry
    plain_http: bool = False

    def find(self) -> Manifest | None:
        return self.registry.find_manifest(self.reference.repository, self.reference.tag)

    def get(self) -> Manifest:
        """Return what the tag names; `RegistryError` when there is nothing of that name."""
        return self.registry.get_manifest(self.reference.repository, self.reference.tag)


def wrong_digest(where: str, wanted: str, got: str) -> RegistryError:
    return RegistryError(
        _("the registry gave other bytes than asked for: {got} instead of {wanted}").format(got=got, wanted=wanted),
        where=where,
        next_step=_("the same again, without the mirror or proxy in front of the registry; nothing of it was kept"),
    )


def _starts_at(response: HttpResponse) -> int:
    if response.status != 206:
        return 0
    first = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return whole_number(first) or 0
