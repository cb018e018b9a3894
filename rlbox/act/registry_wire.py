"""Requests to one registry: its scheme, retries of what may pass, and every refusal as an error that helps."""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import httpx

from rlbox import __version__
from rlbox.act.registry_auth import PASSING, Authorizer, MayPass, find_login, refused_login
from rlbox.errors import RegistryError
from rlbox.plan.reference import DOCKER_HUB, is_loopback

ATTEMPTS = 4
_TIMEOUT = httpx.Timeout(60.0, connect=15.0)
_LONGEST_PAUSE_S = 30.0
_FULL = re.compile(r"no space left|disk quota|out of (disk )?space|quota (is )?exceeded|insufficient storage", re.I)
_HUB_API = f"registry-1.{DOCKER_HUB}"
_CERTIFICATES = Path("/etc/docker/certs.d")

# Failures to connect that will be the same next time: a wrong name, protocol or certificate.
_LASTING = ("[SSL", "not known", "No address associated", "nsupported protocol")

T = TypeVar("T")
Content = bytes | Callable[[], Iterable[bytes]]


class Wire:
    """The connection to one registry.

    Parameters
    ----------
    host
        `HOST[:PORT]`, as in a reference.
    scope
        What tokens are asked for: `pull` or `pull,push`.
    plain_http
        Whether http will do for a registry that is not this machine.
    ca_bundle
        The site's CA bundle, trusted beside the system's own and the engine's (`/etc/docker/certs.d/HOST/*.crt`).
    """

    def __init__(
        self,
        host: str,
        *,
        scope: str,
        plain_http: bool,
        ca_bundle: str,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.host = host
        local = is_loopback(host)
        self._scope = scope
        self._pause = pause
        self._plain = local or plain_http
        self._base = f"{'http' if self._plain else 'https'}://{_HUB_API if host == DOCKER_HUB else host}"
        self._client = httpx.Client(
            verify=_trust(host, ca_bundle),
            timeout=_TIMEOUT,
            trust_env=not local,  # a proxy is never asked for this machine
            headers={"User-Agent": f"rlbox/{__version__}"},
        )
        self._auth = Authorizer(self._client, host, plain_http=plain_http)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ping(self) -> None:
        """Make sure that a registry answers and takes the login.

        Raises
        ------
        RegistryError
            It does not answer, wants a login, or is no registry.
        """
        response = self.send("GET", "/v2/", expect=(200, 400, 404))
        if response.status_code == 400 and self._plain and self._base.startswith("http:"):
            self._base = self._base.replace("http:", "https:", 1)  # what speaks TLS answers 400 to plain http
            response = self.send("GET", "/v2/", expect=(200, 404))
        html = "html" in response.headers.get("Content-Type", "")
        if response.status_code != 200 or html:
            raise RegistryError(
                f"{self.host} is no registry: it answered {response.status_code} {_words(response)}",
                where=str(response.url),
                next_step="check the address; a proxy or a login page may stand in front of it",
            )

    def send(
        self,
        method: str,
        path: str,
        *,
        repository: str = "",
        headers: Mapping[str, str] | None = None,
        content: Content = b"",
        expect: Collection[int] = (200,),
    ) -> httpx.Response:
        """Send a request, again when it failed for a reason that may pass, and return the whole answer.

        Raises
        ------
        RegistryError
            The answer's status is not one of `expect`, or none came.
        """

        def whole() -> httpx.Response:
            with self.once(method, path, repository, headers or {}, content, expect) as response:
                response.read()
                return response

        return self.retry(whole)

    def retry(self, action: Callable[[], T]) -> T:
        """Return what `action` returns, repeating it up to three times while it raises `MayPass`."""
        for attempt in range(1, ATTEMPTS):
            try:
                return action()
            except MayPass as failure:
                self._pause(pause_s(attempt, failure.retry_after))
        try:
            return action()
        except MayPass as failure:
            failure.what += f" (tried {ATTEMPTS} times)"
            raise

    @contextmanager
    def once(
        self,
        method: str,
        path: str,
        repository: str,
        headers: Mapping[str, str],
        content: Content = b"",
        expect: Collection[int] = (200,),
    ) -> Iterator[httpx.Response]:
        """Send a request once and yield the answer, its body still to be read; errors as `send`'s, or `MayPass`."""
        try:
            response = self._authorized(method, path, repository, headers, content)
            try:
                if response.status_code not in expect:
                    response.read()
                    raise self._refusal(response, repository)
                yield response
            finally:
                response.close()
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error

    def _authorized(
        self, method: str, path: str, repository: str, headers: Mapping[str, str], content: Content
    ) -> httpx.Response:
        response = self._once(method, path, headers, content)
        if response.status_code != 401:
            return response
        response.read()
        response.close()
        challenge = response.headers.get("WWW-Authenticate", "")
        if self._auth.answer(challenge, f"repository:{repository}:{self._scope}" if repository else ""):
            return self._once(method, path, headers, content)
        return response

    def _once(self, method: str, path: str, headers: Mapping[str, str], content: Content) -> httpx.Response:
        url = urljoin(self._base, path)
        own = urlsplit(url).netloc == urlsplit(self._base).netloc
        request = self._client.build_request(
            method,
            url,
            headers={**headers, **(self._auth.headers() if own else {})},
            content=content() if callable(content) else content,
        )
        return self._client.send(request, stream=True, follow_redirects=method in ("GET", "HEAD"))

    def _refusal(self, response: httpx.Response, repository: str) -> RegistryError:
        where = f"{self.host}/{repository}" if repository else self.host
        status, words = response.status_code, _words(response)
        if _is_full(response):
            return RegistryError(
                f"{self.host} has no room left: {status} {words}",
                where=where,
                next_step="free space in the registry; what it has already is not sent again",
            )
        if status == 401:
            return refused_login(self.host, login_known=find_login(self.host) is not None, where=where)
        if status == 403:
            known = f"this login may not {'push' if 'push' in self._scope else 'pull'} here"
            return RegistryError(
                f"{self.host} refused: {known} ({words})",
                where=where,
                next_step=f"docker login {self.host} with an account that may",
            )
        if status == 404:
            return RegistryError(f"{self.host} does not have it: {words}", where=where, next_step="check the name")
        may_pass = status in PASSING
        error = (MayPass if may_pass else RegistryError)(
            f"{self.host} answered {status}: {words}",
            where=str(response.url.copy_with(query=None)),
            next_step="try again later; what it has already is not sent again" if may_pass else "",
        )
        if isinstance(error, MayPass):
            error.retry_after = response.headers.get("Retry-After", "")
        return error

    def _unreachable(self, error: httpx.RequestError | httpx.InvalidURL) -> RegistryError:
        words = str(error) or type(error).__name__
        kind: type[RegistryError] = RegistryError
        if isinstance(error, httpx.TimeoutException):
            kind, what, step = MayPass, f"{self.host} did not answer in time", "check the network, then try again"
        elif "CERTIFICATE_VERIFY_FAILED" in words:
            what = f"the certificate of {self.host} is not trusted: {words}"
            step = f"name the site's CA with RLBOX_CA_BUNDLE, or put it at {_CERTIFICATES}/{self.host}/ca.crt"
        elif "WRONG_VERSION_NUMBER" in words or "RECORD_LAYER" in words:
            what, step = f"{self.host} does not speak TLS", "if plain http will do there, give --plain-http"
        else:
            lasting = not isinstance(error, httpx.TransportError) or any(sign in words for sign in _LASTING)
            kind = RegistryError if lasting else MayPass
            what, step = f"{self.host} does not answer: {words}", "check the address and the network"
        return kind(what, where=self._base, next_step=step)


def pause_s(attempt: int, retry_after: str = "") -> float:
    """Return how long to wait after a failed attempt, in seconds: 0.5, 1, 2, or what the registry says, up to 30."""
    if retry_after.isdigit():
        return min(float(retry_after), _LONGEST_PAUSE_S)
    return 0.25 * 2.0**attempt


def _is_full(response: httpx.Response) -> bool:
    return response.status_code == 507 or (response.status_code >= 400 and bool(_FULL.search(response.text)))


def _words(response: httpx.Response) -> str:
    """Return what a registry says about a refusal: the messages of its JSON, else the start of its text."""
    try:
        said: Any = response.json()["errors"]
        texts = [
            " ".join(str(item[key]) for key in ("code", "message", "detail") if item.get(key) not in (None, "", {}))
            for item in said
        ]
    except (ValueError, KeyError, TypeError, AttributeError, json.JSONDecodeError):
        texts = [" ".join(response.text.split())]
    return "; ".join(texts)[:300] or response.reason_phrase


def _trust(host: str, ca_bundle: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for path in (*([Path(ca_bundle)] if ca_bundle else ()), *sorted((_CERTIFICATES / host).glob("*.crt"))):
        try:
            context.load_verify_locations(path)
        except (OSError, ssl.SSLError) as error:
            raise RegistryError(f"the CA bundle cannot be read: {error}", where=str(path)) from error
    return context
