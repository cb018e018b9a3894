"""A client of the OCI distribution API: manifests, blobs up and down, referrers.

For images the engine itself pulls and pushes; this is for what an engine does not do: proving what a registry holds,
fetching a base by its digest, attaching small artifacts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TypeVar
from urllib.parse import quote, urlencode, urlsplit

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
from rlbox.errors import RegistryError
from rlbox.machine.act.http import Answer
from rlbox.registry.act.wire import Content, Wire

T = TypeVar("T")


class Registry:
    """One registry; credentials come from docker's own stores.

    Parameters
    ----------
    host
        `HOST[:PORT]`, as in a reference.
    write
        Whether tokens are to allow pushing.
    plain_http
        Whether http will do for a registry that is not this machine; on this machine it always will.
    ca_bundle
        The site's CA bundle (`site_ca()`), or what finds it when TLS is first spoken.
    on_retry
        Told why, and how long from now, a request is repeated.
    """

    def __init__(
        self,
        host: str,
        *,
        write: bool = False,
        plain_http: bool = False,
        ca_bundle: str | Callable[[], str] = "",
        pause: Callable[[float], None] = time.sleep,
        on_retry: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.host = host
        scope = "pull,push" if write else "pull"
        self._wire = Wire(host, scope=scope, plain_http=plain_http, ca_bundle=ca_bundle, pause=pause, on_retry=on_retry)

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *failure: object) -> None:
        self._wire.close()

    def ping(self) -> None:
        """Make sure that a registry answers; `RegistryError` when not."""
        self._wire.ping()

    def find_manifest(self, repository: str, reference: str) -> Manifest | None:
        """Return the manifest or index that a tag or digest names, or None when it is not there.

        Raises
        ------
        RegistryError
            What came is no manifest, or has another digest than the one asked for.
        """
        path = f"/v2/{repository}/manifests/{quote(reference, safe=':')}"
        accept = {"Accept": ", ".join((*MANIFESTS, *INDEXES))}
        response = self._wire.send("GET", path, repository=repository, headers=accept, expect=(200, 404))
        if response.status == 404:
            return None
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        try:
            manifest = parse_manifest(response.read(), kind)
        except ValueError as error:
            raise RegistryError(
                f"{self.host} answered {kind or 'something'} where a manifest was asked for",
                where=f"{self.host}/{repository}:{reference}",
                next_step="a proxy or a login page may stand in front of the registry",
            ) from error
        if reference.startswith("sha256:") and manifest.digest != reference:
            raise wrong_digest(f"{self.host}/{repository}", reference, manifest.digest)
        return manifest

    def get_manifest(self, repository: str, reference: str) -> Manifest:
        """As `find_manifest`; one that is not there is a `RegistryError`."""
        manifest = self.find_manifest(repository, reference)
        if manifest is None:
            raise RegistryError(
                f"{self.host}/{repository} has no {reference}", where=self.host, next_step="check name and tag"
            )
        return manifest

    def put_manifest(self, repository: str, reference: str, body: bytes, media_type: str) -> bool:
        """Store a manifest under a tag or digest; return whether the registry itself lists it as a referrer."""
        path = f"/v2/{repository}/manifests/{quote(reference, safe=':')}"
        headers = {"Content-Type": media_type}
        response = self._wire.send(
            "PUT", path, repository=repository, headers=headers, content=body, expect=(200, 201, 202)
        )
        stored = response.headers.get("Docker-Content-Digest", "")
        if stored and stored != sha256_of(body):
            raise wrong_digest(f"{self.host}/{repository}", sha256_of(body), stored)
        return "OCI-Subject" in response.headers

    def _has_blob(self, repository: str, digest: str) -> bool:
        path = f"/v2/{repository}/blobs/{digest}"
        with self._wire.once("HEAD", path, repository, {}, expect=(200, 404)) as response:
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
        with self._wire.once("GET", path, repository, headers, expect=(200, 206)) as response:
            yield _starts_at(response), response.blocks()

    def retry(self, action: Callable[[], T]) -> T:
        """Return what `action` returns, repeating it up to three times while it raises `MayPass`."""
        return self._wire.retry(action)

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
        with self._wire.once("POST", f"/v2/{repository}/blobs/uploads/", repository, {}, expect=(202,)) as started:
            location = started.headers.get("Location", "")
        if not location:
            raise RegistryError(f"{self.host} names no place to upload to", where=f"{self.host}/{repository}")
        place = location + ("&" if urlsplit(location).query else "?") + urlencode({"digest": blob.digest})
        headers = {"Content-Type": "application/octet-stream"}
        with self._wire.once("PUT", place, repository, headers, source, expect=(201, 204)) as stored:
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


def wrong_digest(where: str, wanted: str, got: str) -> RegistryError:
    """Return the error for bytes that are not what their name says."""
    return RegistryError(
        f"the registry gave other bytes than asked for: {got} instead of {wanted}",
        where=where,
        next_step="nothing of it was kept; a broken mirror or proxy may stand in front of the registry",
    )


def _starts_at(response: Answer) -> int:
    if response.status != 206:
        return 0
    first = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdigit() else 0
