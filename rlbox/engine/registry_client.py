"""Client of the OCI distribution API: it verifies what an engine pushed, fetches a base by digest, adds signatures."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from rlbox.engine.oci import INDEX_TYPES, MANIFEST_TYPES, Manifest, compute_sha256_digest, parse_manifest
from rlbox.engine.reference import DOCKER_HUB, is_loopback_host
from rlbox.engine.registry_auth import RegistryAuthorizer, TransientRegistryError, create_login_error, read_docker_login
from rlbox.errors import RegistryError
from rlbox.foreign import parse_digits, parse_untrusted_json
from rlbox.i18n import _
from rlbox.system.http import ATTEMPTS, RETRYABLE_STATUSES, HttpClient, HttpResponse, NoFullResponseError, retry

_SILENCE_S = 60.0
_HUB_API = f"registry-1.{DOCKER_HUB}"
_CERTIFICATES = Path("/etc/docker/certs.d")

T = TypeVar("T")


class BlobStreamWithStart(NamedTuple):
    """Where the answer starts in the blob, and its bytes from there."""

    start: int
    chunks: Iterator[bytes]


class Registry:
    """The registry at `HOST[:PORT]`; credentials come from docker's own stores.

    `plain_http`: http will do for a registry that is not this machine, too. `ca_bundle`, the site's, empty for none, is
    trusted beside the system's own and the engine's (`/etc/docker/certs.d/HOST/*.crt`).
    """

    def __init__(
        self,
        host: str,
        *,
        plain_http: bool = False,
        ca_bundle: str = "",
        pause: Callable[[float], None] = time.sleep,
        on_retry: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.host = host
        local = is_loopback_host(host)
        self._pause, self._on_retry = pause, on_retry
        scheme = "http" if local or plain_http else "https"
        self._base = f"{scheme}://{_HUB_API if host == DOCKER_HUB else host}"
        # A proxy is never asked for this machine.
        self._http = HttpClient(
            lambda: _create_tls_context(host, ca_bundle), idle_timeout_s=_SILENCE_S, use_proxies=not local
        )
        self._auth = RegistryAuthorizer(self._http, host, plain_http=plain_http)

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *failure: object) -> None:
        self._http.close()

    def require_reachable_registry(self) -> None:
        """Raise RegistryError where nothing answers, a login is wanted, or what answers is no registry."""
        response = self._request("GET", "/v2/", expect=(200, 404))
        if response.status != 200 or "html" in response.headers.get("Content-Type", ""):
            raise RegistryError(
                _("{host} is not a registry: it answered {status} {words}").format(
                    host=self.host, status=response.status, words=_read_error_text(response)
                ),
                where=response.url,
                next_step=_("check the address; a proxy or a login page may stand in front of it"),
            )

    def find_manifest(self, repository: str, reference: str) -> Manifest | None:
        """Return the manifest or index that a tag or digest names; RegistryError where that has another digest."""
        path = f"/v2/{repository}/manifests/{quote(reference, safe=':')}"
        accept = {"Accept": ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))}
        response = self._request("GET", path, repository, accept, expect=(200, 404))
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
            raise create_digest_mismatch_error(f"{self.host}/{repository}", reference, manifest.digest)
        return manifest

    def require_manifest(self, repository: str, reference: str) -> Manifest:
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

    @contextmanager
    def open_unverified_blob(self, repository: str, digest: str, start: int = 0) -> Iterator[BlobStreamWithStart]:
        """Yield the blob's bytes from 0 or `start` on, not verified; `retry` is for a connection that breaks."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self._stream("GET", f"/v2/{repository}/blobs/{digest}", repository, headers, (200, 206)) as response:
            first = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
            yield BlobStreamWithStart(
                (parse_digits(first) or 0) if response.status == 206 else 0, response.iter_bytes()
            )

    def upload_blob(self, repository: str, data: bytes) -> None:
        """Upload a small blob in one piece."""
        started = self._request("POST", f"/v2/{repository}/blobs/uploads/", repository, expect=(202,))
        session = urlsplit(started.headers.get("Location", ""))  # its host would get the login: this one is meant
        query = "&".join(filter(None, (session.query, urlencode({"digest": compute_sha256_digest(data)}))))
        headers = {"Content-Type": "application/octet-stream"}
        self._request("PUT", f"{session.path}?{query}", repository, headers, expect=(201,), body=data)

    def upload_manifest(self, repository: str, tag: str, body: bytes, media_type: str) -> None:
        path = f"/v2/{repository}/manifests/{quote(tag)}"
        self._request("PUT", path, repository, {"Content-Type": media_type}, expect=(201,), body=body)

    def retry(self, action: Callable[[], T]) -> T:
        try:
            return retry(action, TransientRegistryError, pause=self._pause, on_retry=self._on_retry)
        except TransientRegistryError as failure:
            failure.what += _(" (tried {attempts} times)").format(attempts=ATTEMPTS)
            raise

    def _request(
        self,
        method: str,
        path: str,
        repository: str = "",
        headers: Mapping[str, str] | None = None,
        expect: Collection[int] = (200,),
        body: bytes = b"",
    ) -> HttpResponse:
        """As `_stream`, repeated while it fails for a reason that may pass; return the answer with its body read."""

        def request() -> HttpResponse:
            with self._stream(method, path, repository, headers, expect, body) as response:
                response.read_body()
                return response

        return self.retry(request)

    @contextmanager
    def _stream(
        self,
        method: str,
        path: str,
        repository: str,
        headers: Mapping[str, str] | None,
        expect: Collection[int],
        body: bytes = b"",
    ) -> Iterator[HttpResponse]:
        """Send a request, with a login once it is asked for, and yield the answer with an unread body.

        Raises RegistryError: the answer's status is not one of `expect`, or none came; `TransientRegistryError` where
          that may pass.
        """
        try:
            for is_last in (False, True):
                sent = {**(headers or {}), **self._auth.get_remembered_auth_headers()}
                with self._http.stream(method, self._base + path, headers=sent, body=body) as answer:
                    if answer.status == 401 and not is_last:
                        answer.read_body()
                        actions = "pull" if method == "GET" else "pull,push"
                        scope = f"repository:{repository}:{actions}" if repository else ""
                        if self._auth.update_auth_from_challenge(answer.headers.get("WWW-Authenticate", ""), scope):
                            continue
                    if answer.status not in expect:
                        raise self._create_refusal(answer, repository)
                    yield answer
                    return
        except NoFullResponseError as error:
            raise self._create_no_response_error(error) from error

    def _create_refusal(self, response: HttpResponse, repository: str) -> RegistryError:
        where = f"{self.host}/{repository}" if repository else self.host
        status, message = response.status, _read_error_text(response)
        if status == 401:
            return create_login_error(self.host, login_known=bool(read_docker_login(self.host)), error_location=where)
        what = _("{host} answered {status}: {message}").format(host=self.host, status=status, message=message)
        where = response.url.partition("?")[0]
        if status not in RETRYABLE_STATUSES:
            return RegistryError(what, where=where, next_step=f"docker login {self.host}" if status == 403 else "")
        error = TransientRegistryError(what, where=where, next_step=_("try again later"))
        error.retry_after = response.headers.get("Retry-After", "")
        return error

    def _create_no_response_error(self, error: NoFullResponseError) -> RegistryError:
        message = str(error)
        if error.kind == "untrusted":
            return RegistryError(
                _("the certificate of {host} is not trusted: {message}").format(host=self.host, message=message),
                where=self._base,
                next_step=_("name the site's CA with RLBOX_CA_BUNDLE, or put it at {path}").format(
                    path=f"{_CERTIFICATES}/{self.host}/ca.crt"
                ),
            )
        if "[SSL" in message:
            return RegistryError(
                _("{host} does not speak TLS: {message}").format(host=self.host, message=message),
                where=self._base,
                next_step=_("if plain http will do there, give --plain-http"),
            )
        kind = RegistryError if error.kind == "address" else TransientRegistryError
        return kind(
            _("{host} does not answer: {message}").format(host=self.host, message=message),
            where=self._base,
            next_step=_("check the address and the network"),
        )


def create_digest_mismatch_error(where: str, expected_digest: str, actual_digest: str) -> RegistryError:
    return RegistryError(
        _("the registry gave other bytes than asked for: {got} instead of {wanted}").format(
            got=actual_digest, wanted=expected_digest
        ),
        where=where,
        next_step=_("the same again, without the mirror or proxy in front of the registry; nothing of it was kept"),
    )


def _read_error_text(response: HttpResponse) -> str:
    try:
        errors: Any = parse_untrusted_json(response.read_body())["errors"]
        texts = [
            " ".join(str(item[key]) for key in ("code", "message", "detail") if item.get(key) not in (None, "", {}))
            for item in errors
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        texts = [" ".join(response.read_body().decode("utf-8", "replace").split())]
    return "; ".join(texts)[:300] or response.reason


def _create_tls_context(host: str, ca_bundle: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for path in (*([Path(ca_bundle)] if ca_bundle else ()), *sorted((_CERTIFICATES / host).glob("*.crt"))):
        try:
            context.load_verify_locations(path)
        except (OSError, ssl.SSLError) as error:
            raise RegistryError(
                _("the CA bundle cannot be read: {error}").format(error=error), where=str(path)
            ) from error
    return context
