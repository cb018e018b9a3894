"""Client of the OCI distribution API: manifests, blobs up and down, referrers.

The engine itself pulls and pushes images. This client verifies a registry's content, fetches a base by its digest and
attaches small artifacts, which an engine does not do.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urljoin, urlsplit

from rlbox.engine.oci import (
    INDEX_TYPE,
    INDEX_TYPES,
    MANIFEST_TYPES,
    Descriptor,
    Manifest,
    compute_digest,
    create_index,
    format_referrers_tag,
    parse_manifest,
    replace_referrer,
)
from rlbox.engine.reference import DOCKER_HUB, ImageReference, is_loopback_host
from rlbox.engine.registry_auth import (
    RegistryAuthorizer,
    TransientRegistryError,
    create_login_error,
    find_docker_config_login,
)
from rlbox.errors import RegistryError
from rlbox.foreign import parse_json, whole_number
from rlbox.i18n import _
from rlbox.system.http import ATTEMPTS, RETRYABLE_STATUSES, FileBody, HttpClient, HttpResponse, NoResponseError, retry

_SILENCE_S = 60.0
_SETTLED_PER_S = 10e6  # bytes; a registry that keeps its blobs elsewhere moves them there before it answers
_FULL = re.compile(r"no space left|disk quota|out of (disk )?space|quota (is )?exceeded|insufficient storage", re.I)
_HUB_API = f"registry-1.{DOCKER_HUB}"
_CERTIFICATES = Path("/etc/docker/certs.d")

# Failures to connect that will be the same next time: a wrong name or protocol.
_LASTING = ("[SSL", "not known", "No address associated")

BlobContent = bytes | Path
T = TypeVar("T")


class BlobStream(NamedTuple):
    """Where the answer starts in the blob, and its bytes from there."""

    start: int
    chunks: Iterator[bytes]


class Registry:
    """One registry; credentials come from docker's own stores.

    `host`: `HOST[:PORT]`, as in a reference.
    `write`: Whether tokens are to allow pushing.
    `plain_http`: Whether http will do for a registry that is not this machine; on this machine it always will.
    `ca_bundle`: The site's CA bundle, or what finds it when TLS is first spoken; it is trusted beside the system's own
      and the engine's (`/etc/docker/certs.d/HOST/*.crt`).
    `on_retry`: Told why, and how long from now, a request is repeated.
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
        local = is_loopback_host(host)
        self._scope = "pull,push" if write else "pull"
        self._pause, self._on_retry = pause, on_retry
        self._plain = local or plain_http
        self._base = f"{'http' if self._plain else 'https'}://{_HUB_API if host == DOCKER_HUB else host}"
        # A proxy is never asked for this machine.
        self._http = HttpClient(lambda: _trust(host, ca_bundle), idle_timeout_s=_SILENCE_S, use_proxies=not local)
        self._auth = RegistryAuthorizer(self._http, host, plain_http=plain_http)

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *failure: object) -> None:
        self._http.close()

    def require_registry(self) -> None:
        """Make sure that a registry answers and takes the login.

        Raises RegistryError: it does not answer, wants a login, or is no registry.
        """
        response = self.send_with_retry("GET", "/v2/", expect=(200, 400, 404))
        if response.status == 400 and self._plain and self._base.startswith("http:"):
            self._base = self._base.replace("http:", "https:", 1)  # what speaks TLS answers 400 to plain http
            response = self.send_with_retry("GET", "/v2/", expect=(200, 404))
        html = "html" in response.headers.get("Content-Type", "")
        if response.status != 200 or html:
            raise RegistryError(
                _("{host} is no registry: it answered {status} {words}").format(
                    host=self.host, status=response.status, words=_words(response)
                ),
                where=response.url,
                next_step=_("check the address; a proxy or a login page may stand in front of it"),
            )

    def send_with_retry(
        self,
        method: str,
        path: str,
        *,
        repository: str = "",
        headers: Mapping[str, str] | None = None,
        content: BlobContent = b"",
        expect: Collection[int] = (200,),
    ) -> HttpResponse:
        """Send a request, again when it failed for a reason that may pass, and return the whole answer.

        Raises RegistryError: the answer's status is not one of `expect`, or none came.
        """

        def whole() -> HttpResponse:
            with self.stream_once(method, path, repository, headers or {}, content, expect) as response:
                response.read_body()
                return response

        return self.retry(whole)

    def retry(self, action: Callable[[], T]) -> T:
        try:
            return retry(action, TransientRegistryError, pause=self._pause, on_retry=self._on_retry)
        except TransientRegistryError as failure:
            failure.what += _(" (tried {attempts} times)").format(attempts=ATTEMPTS)
            raise

    @contextmanager
    def stream_once(
        self,
        method: str,
        path: str,
        repository: str,
        headers: Mapping[str, str],
        content: BlobContent = b"",
        expect: Collection[int] = (200,),
    ) -> Iterator[HttpResponse]:
        """Send a request once and yield the answer with an unread body; also raises `TransientRegistryError`."""
        url = self._address(path)
        try:
            with self._authorized(method, url, repository, headers, content) as answer:
                if answer.status not in expect:
                    raise self._refusal(answer, repository)
                yield answer
        except NoResponseError as error:
            raise self._unreachable(error) from error

    def _address(self, path: str) -> str:
        try:
            url = urljoin(self._base, path)  # a registry may name one of another host
            urlsplit(url)
        except ValueError as error:
            raise RegistryError(
                _("{host} names an address that is none: {error}").format(host=self.host, error=error), where=path
            ) from error
        return url

    @contextmanager
    def _authorized(
        self, method: str, url: str, repository: str, headers: Mapping[str, str], content: BlobContent
    ) -> Iterator[HttpResponse]:
        size = content.stat().st_size if isinstance(content, Path) else len(content)

        def asked() -> AbstractContextManager[HttpResponse]:
            body = FileBody(path=content) if isinstance(content, Path) else content
            silent_s = _SILENCE_S + size / _SETTLED_PER_S
            return self._http.stream(
                method, url, headers={**headers, **self._login(url)}, body=body, idle_timeout_s=silent_s
            )

        sent = self._login(url).get("Authorization", "")
        with ExitStack() as stack:
            answer = stack.enter_context(asked())
            if answer.status == 401:
                challenge = answer.headers.get("WWW-Authenticate", "")
                scope = f"repository:{repository}:{self._scope}" if repository else ""
                answer.read_body()
                if self._auth.answer_challenge(challenge, scope, sent):
                    stack.close()
                    answer = stack.enter_context(asked())
            yield answer

    def _login(self, url: str) -> dict[str, str]:
        """Return the login for an address: the registry's own, with the scheme that was chosen for it."""
        return self._auth.authorization_headers() if urlsplit(url)[:2] == urlsplit(self._base)[:2] else {}

    def _refusal(self, response: HttpResponse, repository: str) -> RegistryError:
        where = f"{self.host}/{repository}" if repository else self.host
        status, message = response.status, _words(response)
        if _is_full(response):
            return RegistryError(
                _("{host} has no room left: {status} {words}").format(host=self.host, status=status, words=message),
                where=where,
                next_step=_("free space in the registry; what it has already is not sent again"),
            )
        if status == 401:
            return create_login_error(
                self.host, login_known=find_docker_config_login(self.host) is not None, where=where
            )
        if status == 403:
            known = _("this login may not {scope} here").format(scope=self._scope.rpartition(",")[2])
            return RegistryError(
                _("{host} refused: {known} ({words})").format(host=self.host, known=known, words=message),
                where=where,
                next_step=_("docker login {host} with an account that may").format(host=self.host),
            )
        if status == 404:
            return RegistryError(
                _("{host} does not have it: {words}").format(host=self.host, words=message),
                where=where,
                next_step=_("check the name"),
            )
        may_pass = status in RETRYABLE_STATUSES
        error = (TransientRegistryError if may_pass else RegistryError)(
            f"{self.host} answered {status}: {message}",
            where=response.url.partition("?")[0],
            next_step="try again later; what it has already is not sent again" if may_pass else "",
        )
        if isinstance(error, TransientRegistryError):
            error.retry_after = response.headers.get("Retry-After", "")
        return error

    def _unreachable(self, error: NoResponseError) -> RegistryError:
        message = str(error)
        kind: type[RegistryError] = RegistryError
        if error.kind in ("late", "silent"):
            kind, what, step = (
                TransientRegistryError,
                f"{self.host} did not answer in time",
                "check the network, then try again",
            )
        elif error.kind == "untrusted":
            what = f"the certificate of {self.host} is not trusted: {message}"
            step = f"name the site's CA with RLBOX_CA_BUNDLE, or put it at {_CERTIFICATES}/{self.host}/ca.crt"
        elif "WRONG_VERSION_NUMBER" in message or "RECORD_LAYER" in message:
            what, step = f"{self.host} does not speak TLS", "if plain http will do there, give --plain-http"
        else:
            lasting = error.kind == "address" or any(sign in message for sign in _LASTING)
            kind = RegistryError if lasting else TransientRegistryError
            what, step = f"{self.host} does not answer: {message}", "check the address and the network"
        return kind(what, where=self._base, next_step=step)

    def find_manifest(self, repository: str, reference: str) -> Manifest | None:
        """Return the manifest or index that a tag or digest names, or None when it is not there.

        Raises RegistryError: what came is no manifest, or has another digest than the one asked for.
        """
        path = f"/v2/{repository}/manifests/{quote(reference, safe=':')}"
        accept = {"Accept": ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))}
        response = self.send_with_retry("GET", path, repository=repository, headers=accept, expect=(200, 404))
        if response.status == 404:
            return None
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        try:
            manifest = parse_manifest(response.read_body(), kind)
        except ValueError as error:
            raise RegistryError(
                _("{host} answered {kind} where a manifest was asked for").format(
                    host=self.host, kind=kind or "something"
                ),
                where=f"{self.host}/{repository}:{reference}",
                next_step=_("a proxy or a login page may stand in front of the registry"),
            ) from error
        if reference.startswith("sha256:") and manifest.digest != reference:
            raise create_digest_error(f"{self.host}/{repository}", reference, manifest.digest)
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
        response = self.send_with_retry(
            "PUT", path, repository=repository, headers=headers, content=body, expect=(200, 201, 202)
        )
        stored = response.headers.get("Docker-Content-Digest", "")
        if stored and stored != compute_digest(body):
            raise create_digest_error(f"{self.host}/{repository}", compute_digest(body), stored)
        return "OCI-Subject" in response.headers

    def _has_blob(self, repository: str, digest: str) -> bool:
        path = f"/v2/{repository}/blobs/{digest}"
        with self.stream_once("HEAD", path, repository, {}, expect=(200, 404)) as response:
            return response.status == 200

    @contextmanager
    def open_blob(self, repository: str, digest: str, start: int = 0) -> Iterator[BlobStream]:
        """Yield where the answer starts, 0 or `start`, and the blob's bytes from there; they are not verified here.

        Raises TransientRegistryError: the connection broke; `retry` is for that.
        """
        path = f"/v2/{repository}/blobs/{digest}"
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self.stream_once("GET", path, repository, headers, expect=(200, 206)) as response:
            yield BlobStream(_starts_at(response), response.iter_bytes())

    def put_blob(self, repository: str, blob: Descriptor, source: BlobContent) -> bool:
        """Upload a blob unless the repository has it; return whether it was sent.

        `source`: The bytes, or a file with them; it is read again when an upload must be repeated.
        Raises RegistryError: the registry refused, or stored other bytes.
        Raises OSError: the file cannot be read.
        """

        def upload() -> bool:
            if self._has_blob(repository, blob.digest):
                return False
            self._upload(repository, blob, source)
            return True

        return self.retry(upload)

    def _upload(self, repository: str, blob: Descriptor, source: BlobContent) -> None:
        with self.stream_once("POST", f"/v2/{repository}/blobs/uploads/", repository, {}, expect=(202,)) as started:
            location = started.headers.get("Location", "")
        if not location:
            raise RegistryError(
                _("{host} names no place to upload to").format(host=self.host), where=f"{self.host}/{repository}"
            )
        place = location + ("&" if "?" in location else "?") + urlencode({"digest": blob.digest})
        headers = {"Content-Type": "application/octet-stream"}
        with self.stream_once("PUT", place, repository, headers, source, expect=(201, 204)) as stored:
            said = stored.headers.get("Docker-Content-Digest", blob.digest)
        if said != blob.digest:
            raise create_digest_error(f"{self.host}/{repository}", blob.digest, said)

    def put_referrers(self, repository: str, subject: str, artifacts: Sequence[tuple[bytes, Descriptor]]) -> None:
        """Store manifests with the same subject, and list those that the registry does not list itself.

        `artifacts`: Each manifest, and what points to it.
        """
        unlisted = [
            listed
            for body, listed in artifacts
            if not self.put_manifest(repository, listed.digest, body, listed.media_type)
        ]
        if not unlisted:
            return
        tag = format_referrers_tag(subject)
        before = self.find_manifest(repository, tag)
        known = before.manifests if before else ()
        after = reduce(replace_referrer, unlisted, known)
        if not before or after != known:
            self.put_manifest(repository, tag, create_index(after), INDEX_TYPE)


@dataclass(frozen=True, kw_only=True)
class PushDestination:
    """A tag of a registry; `plain_http` says whether http was allowed to a registry on another machine."""

    reference: ImageReference
    registry: Registry
    plain_http: bool = False

    def find_manifest(self) -> Manifest | None:
        return self.registry.find_manifest(self.reference.repository, self.reference.tag)

    def get_manifest(self) -> Manifest:
        """Return what the tag names; `RegistryError` when there is nothing of that name."""
        return self.registry.get_manifest(self.reference.repository, self.reference.tag)


def create_digest_error(where: str, expected_digest: str, actual_digest: str) -> RegistryError:
    return RegistryError(
        _("the registry gave other bytes than asked for: {got} instead of {wanted}").format(
            got=actual_digest, wanted=expected_digest
        ),
        where=where,
        next_step=_("the same again, without the mirror or proxy in front of the registry; nothing of it was kept"),
    )


def _starts_at(response: HttpResponse) -> int:
    if response.status != 206:
        return 0
    first = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return whole_number(first) or 0


def _is_full(response: HttpResponse) -> bool:
    return response.status == 507 or (response.status >= 400 and bool(_FULL.search(_text(response))))


def _words(response: HttpResponse) -> str:
    """Return what a registry says about a refusal: the messages of its JSON, else the start of its text."""
    try:
        said: Any = parse_json(response.read_body())["errors"]
        texts = [
            " ".join(str(item[key]) for key in ("code", "message", "detail") if item.get(key) not in (None, "", {}))
            for item in said
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        texts = [" ".join(_text(response).split())]
    return "; ".join(texts)[:300] or response.reason


def _text(response: HttpResponse) -> str:
    return response.read_body().decode("utf-8", "replace")


def _trust(host: str, ca_bundle: str | Callable[[], str]) -> ssl.SSLContext:
    site = ca_bundle() if callable(ca_bundle) else ca_bundle
    context = ssl.create_default_context()
    for path in (*([Path(site)] if site else ()), *sorted((_CERTIFICATES / host).glob("*.crt"))):
        try:
            context.load_verify_locations(path)
        except (OSError, ssl.SSLError) as error:
            raise RegistryError(
                _("the CA bundle cannot be read: {error}").format(error=error), where=str(path)
            ) from error
    return context
