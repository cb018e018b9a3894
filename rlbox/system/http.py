"""The one way to speak HTTP: kept connections; this machine's proxies, CA and logins; limits on waits; one retry."""

from __future__ import annotations

import re
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import SplitResult, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from rlbox import __version__
from rlbox.amounts import exact_duration_text
from rlbox.foreign import parse_digits, parse_untrusted_json
from rlbox.i18n import _
from rlbox.system.network_settings import NetworkSettings, read_netrc

if TYPE_CHECKING:
    from netrc import netrc

    from urllib3 import BaseHTTPResponse, HTTPHeaderDict, PoolManager


NoResponseKind = Literal["silent", "cut", "unreached", "untrusted", "address"]
"""Why no answer came: no byte, or no connection, for too long; the connection ended before the answer did; nothing
listens there, or nothing that can be understood; its certificate; what no repetition changes (an address that is none,
redirects without end)."""


class NoFullResponseError(Exception):
    """No answer came, or only a part of one; `describe_response_error` makes a sentence of the cause."""

    kind: NoResponseKind
    host: str

    def __init__(self, message: str, kind: NoResponseKind, host: str = "") -> None:
        super().__init__(message)
        self.kind, self.host = kind, host


def describe_response_error(error: Exception) -> str:
    if not isinstance(error, NoFullResponseError):
        return _strip_errno(error)
    if error.kind == "silent":
        return _("stalls: nothing came for too long")
    if error.kind == "cut":
        return _("breaks the connection off")
    if error.host and error.kind != "address":
        return _("cannot reach {host}: {error}").format(host=error.host, error=error)
    return str(error)


def _strip_errno(error: BaseException) -> str:
    """Return the error's text without the number that only C programs read."""
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


CONNECT_S = 10.0
READ_TIMEOUT_S = 10.0  # between two pieces of an answer
ATTEMPTS = 4
RETRYABLE_STATUSES = (408, 425, 429, 500, 502, 503, 504)
"""Statuses after which the same request may go well a little later."""
_CONNECTIONS = 64
_BLOCK = 1 << 18
_REDIRECTS = 10
_LONGEST_PAUSE_S = 30.0

T = TypeVar("T")


class HttpResponse:
    """An answer, its body still to be read; reading raises `NoFullResponseError`.

    `urls` are the addresses on the way to it, redirects followed; the last one answered.
    """

    def __init__(self, response: BaseHTTPResponse, urls: tuple[str, ...]) -> None:
        self.status: int = response.status
        self.reason: str = response.reason or ""
        self.headers: HTTPHeaderDict = response.headers
        self.urls = urls
        self._response = response

    @property
    def url(self) -> str:
        return self.urls[-1]

    @property
    def content_length(self) -> int | None:
        return parse_digits(self.headers.get("Content-Length", ""))

    def iter_bytes(self, *, decode: bool = False) -> Iterator[bytes]:
        """Yield the body as it comes, once; with `decode`, what its `Content-Encoding` packed."""
        with _convert_errors(self.url):
            while block := self._response.read1(_BLOCK, decode_content=decode):
                yield block

    def read_body(self) -> bytes:
        with _convert_errors(self.url):
            return self._response.data

    def read_json(self) -> Any:
        return parse_untrusted_json(self.read_body())


class HttpClient:
    """Sends requests; connections are kept, and any number of threads may use it at once.

    `make_tls_context` is called when TLS is first spoken. A host gets `max_connections` requests at once; further ones
    wait. `idle_timeout_s` is the wait for the next byte; to connect, at most `CONNECT_S`. GET and HEAD follow
    redirects; an `Authorization` header goes to its own host alone.
    """

    def __init__(
        self,
        make_tls_context: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        *,
        max_connections: int = _CONNECTIONS,
        idle_timeout_s: float = READ_TIMEOUT_S,
        use_proxies: bool = True,
        use_netrc: bool = False,
        follow_redirects: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._make_tls_context, self._max_connections = make_tls_context, max_connections
        self._idle_timeout_s, self._follow_redirects = idle_timeout_s, follow_redirects
        self._headers = {"User-Agent": f"rlbox/{__version__}", "Accept-Encoding": "identity", **(headers or {})}
        self._proxies = getproxies() if use_proxies else {}
        self._netrc = read_netrc() if use_netrc else None
        self._pools: dict[tuple[str, str], PoolManager] = {}
        self._lock = Lock()

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            for pool in self._pools.values():
                pool.clear()

    @contextmanager
    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        idle_timeout_s: float | None = None,
    ) -> Iterator[HttpResponse]:
        """Yield the answer, whatever its status; its body is to be read before the block ends.

        Raises NoResponseError: none came; the cause is chained.
        """
        sent, urls = {**self._headers, **(headers or {})}, [url]
        while True:
            response = self._exchange(method, urls[-1], sent, body, idle_timeout_s or self._idle_timeout_s)
            location = response.get_redirect_location()
            if not (location and self._follow_redirects and method in ("GET", "HEAD")):
                break
            with _convert_errors(url):
                response.drain_conn()
                urls.append(urljoin(urls[-1], location))
                if urlsplit(urls[-2])[:2] != urlsplit(urls[-1])[:2]:
                    sent = {name: value for name, value in sent.items() if name.title() != "Authorization"}
            if len(urls) > _REDIRECTS + 1:
                message = _("it redirects more than {redirects} times").format(redirects=_REDIRECTS)
                raise NoFullResponseError(message, "address", _parse_host(url))
        try:
            yield HttpResponse(response, tuple(urls))
        finally:
            response.close()  # what was read to its end has gone back to its pool before
            response.release_conn()  # and any other must, or the pool, which is limited, waits for it forever

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> HttpResponse:
        with self.stream(method, url, headers=headers, body=body) as answer:
            answer.read_body()
            return answer

    def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, idle_timeout_s: float
    ) -> BaseHTTPResponse:
        from urllib3 import Timeout

        with _convert_errors(url):
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(_("unsupported protocol in {url!r}").format(url=url))
            return self._find_pool(parts).urlopen(
                method,
                parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
                headers={**_find_login(parts, self._netrc), **headers},
                body=body or None,
                timeout=Timeout(connect=min(CONNECT_S, idle_timeout_s), read=idle_timeout_s),
                redirect=False,
                retries=False,
                preload_content=False,
            )

    def _find_pool(self, parts: SplitResult) -> PoolManager:
        from urllib3 import PoolManager, ProxyManager, make_headers

        proxy = self._proxies.get(parts.scheme) or self._proxies.get("all") or ""
        if proxy_bypass(parts.hostname or ""):
            proxy = ""
        with self._lock:
            if pool := self._pools.get((parts.scheme, proxy)):
                return pool
            settings: dict[str, Any] = {"num_pools": 64, "maxsize": self._max_connections, "block": True}
            if parts.scheme == "https":
                settings["ssl_context"] = self._make_tls_context()
            if proxy:
                through = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
                login = make_headers(proxy_basic_auth=_format_userinfo(through)) if through.username else None
                pool = ProxyManager(through.geturl(), proxy_headers=login, **settings)
            else:
                pool = PoolManager(**settings)
            return self._pools.setdefault((parts.scheme, proxy), pool)


def create_netrc_client(
    ca_bundle_from: NetworkSettings, *, idle_timeout_s: float = READ_TIMEOUT_S, max_connections: int = _CONNECTIONS
) -> HttpClient:
    return HttpClient(
        partial(create_tls_context, ca_bundle_from.ca_bundle),
        max_connections=max_connections,
        idle_timeout_s=idle_timeout_s,
        use_netrc=True,
    )


def create_loopback_client(idle_timeout_s: float, headers: Mapping[str, str] | None = None) -> HttpClient:
    """Return what asks services of this machine: no proxy, no login, and redirects are answers."""
    return HttpClient(idle_timeout_s=idle_timeout_s, use_proxies=False, follow_redirects=False, headers=headers)


def create_tls_context(ca_bundle: str) -> ssl.SSLContext:
    """Return a context that trusts a site's bundle; without one, the system's certificates and certifi's."""
    import certifi

    context = ssl.create_default_context(cafile=ca_bundle or certifi.where())
    if not ca_bundle:
        context.load_default_certs()
    return context


def retry(
    action: Callable[[], T],
    on: type[Exception] | tuple[type[Exception], ...] = NoFullResponseError,
    *,
    attempts: int = ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
    on_retry: Callable[[str], None] = lambda told: None,
) -> T:
    """Return what `action` returns, repeating it with growing pauses while it raises one of `on`.

    An error's `retry_after`, if it has one, is the `Retry-After` that a server sent with it. `on_retry` is told
    which attempt failed, of what, and when the next one is. What the last attempt raises is raised.
    """
    for attempt in range(1, attempts):
        try:
            return action()
        except on as error:
            if isinstance(error, NoFullResponseError) and error.kind == "address":
                raise
            wait_s = compute_exponential_backoff_s(attempt, getattr(error, "retry_after", ""))
            what = getattr(error, "what", "") or error
            told = _("attempt {attempt} of {attempts} failed: {what}; again in {wait}")
            on_retry(told.format(attempt=attempt, attempts=attempts, what=what, wait=exact_duration_text(wait_s)))
            pause(wait_s)
    return action()


def compute_exponential_backoff_s(failed_attempts: int, overriding_retry_after_header: str = "") -> float:
    """Return how long to wait after a failed attempt, in seconds: 0.5, 1, 2, or what the server says, up to 30."""
    from urllib3 import Retry
    from urllib3.exceptions import InvalidHeader

    try:
        return min(Retry().parse_retry_after(overriding_retry_after_header), _LONGEST_PAUSE_S)
    except InvalidHeader:
        return min(0.25 * 2.0**failed_attempts, _LONGEST_PAUSE_S)


def _format_userinfo(parts: SplitResult) -> str:
    return f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"


def _find_login(parts: SplitResult, known: netrc | None) -> Mapping[str, str]:
    login = _format_userinfo(parts) if parts.username else ""
    if not login and known and (entry := known.authenticators(parts.hostname or "")):
        login = f"{entry[0]}:{entry[2]}" if entry[2] else ""
    return {"Authorization": f"Basic {b64encode(login.encode()).decode()}"} if login else {}


@contextmanager
def _convert_errors(url: str) -> Iterator[None]:
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (HTTPError, HTTPException, ssl.SSLError, ValueError) as error:
        root: BaseException = error
        while inner := root.__cause__ or next((arg for arg in root.args if isinstance(arg, Exception)), None):
            root = inner
        raise NoFullResponseError(_strip_errno(root), _find_kind(error, root), _parse_host(url)) from error


def _parse_host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _find_kind(error: Exception, root: BaseException) -> NoResponseKind:
    from urllib3 import exceptions as of

    if isinstance(root, TimeoutError):
        return "silent"
    if isinstance(root, ssl.SSLCertVerificationError):
        return "untrusted"
    if isinstance(root, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return "cut"
    if isinstance(error, (of.NewConnectionError, of.ProxyError, of.SSLError, ssl.SSLError)):
        return "unreached"
    if isinstance(error, (of.HTTPError, HTTPException)) and not isinstance(
        error, (of.LocationValueError, of.InvalidHeader)
    ):
        return "cut"
    return "address"
