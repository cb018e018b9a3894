"""The one way to speak HTTP: kept connections; this machine's proxies, CA and logins; limits on waits; one retry."""

from __future__ import annotations

import os
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import SplitResult, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from rlbox import __version__
from rlbox.amounts import limit_text
from rlbox.foreign import parse_json, whole_number
from rlbox.i18n import _
from rlbox.system.network_settings import NetworkSettings, read_netrc

if TYPE_CHECKING:
    from netrc import netrc

    from urllib3 import BaseHTTPResponse, HTTPHeaderDict, PoolManager


NoResponseKind = Literal["late", "silent", "cut", "unreached", "untrusted", "address"]
"""Why no answer came: the connection is not taken in time; no byte for too long; the connection ended before the answer
did; nothing listens there, or nothing that can be understood; its certificate; what no repetition changes (an address
that is none, redirects without end)."""


class NoResponseError(Exception):
    """No answer came, or only a part of one; `explain_no_response` makes a sentence of the cause."""

    def __init__(self, message: str, kind: NoResponseKind, host: str = "") -> None:
        super().__init__(message)
        self.kind, self.host = kind, host


def explain_no_response(error: Exception) -> str:
    match error:
        case NoResponseError(kind="late"):
            return _("does not take the connection")
        case NoResponseError(kind="silent"):
            return _("stalls: nothing came for too long")
        case NoResponseError(kind="cut"):
            return _("breaks the connection off")
        case NoResponseError(kind="unreached" | "untrusted") if error.host:
            return _("cannot reach {host}: {error}").format(host=error.host, error=error)
        case _:
            return strip_errno(error)


def strip_errno(error: BaseException) -> str:
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
_DRAINED = 1 << 16
_LONGEST_PAUSE_S = 30.0

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class FileBody:
    path: Path


Body = bytes | FileBody
"""What is sent."""


class HttpResponse:
    """An answer, its body still to be read; reading raises `NoResponseError`.

    `urls` are the addresses on the way to it, redirects followed; the last one answered.
    """

    def __init__(self, response: BaseHTTPResponse, urls: tuple[str, ...]) -> None:
        self.status: int = response.status
        self.reason: str = response.reason or ""
        self.headers: HTTPHeaderDict = response.headers
        self.urls = urls
        self._response = response
        self._whole: bytes | None = None

    @property
    def url(self) -> str:
        return self.urls[-1]

    @property
    def content_length(self) -> int | None:
        """The bytes of the body as its head says; None when it does not."""
        return whole_number(self.headers.get("Content-Length", ""))

    def iter_bytes(self, *, decode: bool = False) -> Iterator[bytes]:
        """Yield the body as it comes, once; with `decode`, what its `Content-Encoding` packed."""
        with _told(self.url):
            while block := self._response.read1(_BLOCK, decode_content=decode):
                yield block

    def read_body(self) -> bytes:
        """Return the whole body, unpacked, as often as it is asked for."""
        if self._whole is None:
            with _told(self.url):
                self._whole = self._response.read(decode_content=True)
        return self._whole

    def parse_json(self) -> Any:
        return parse_json(self.read_body())


class HttpClient:
    """Asks hosts; connections are kept, and any number of threads may ask at once.

    Parameters
    ----------
    make_tls_context
        Makes the context for TLS; called when TLS is first spoken. The system's certificates unless given.
    max_connections
        How many requests one host gets at once; further ones wait.
    idle_timeout_s
        How long to wait for the next byte; to connect, at most `CONNECT_S`.
    use_proxies
        Whether `https_proxy`, `no_proxy` and their like count.
    use_netrc
        Whether the logins of `.netrc` are used.
    follow_redirects
        Whether GET and HEAD follow redirects; an `Authorization` header goes to its own host alone.
    headers
        Sent with each request, beside those of this rlbox.
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
        self._trust, self._connections, self._silent_s = make_tls_context, max_connections, idle_timeout_s
        self._follow = follow_redirects
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
            for pools in self._pools.values():
                for key in pools.pools.keys():  # noqa: SIM118 -- it cannot be iterated over
                    pools.pools[key].close()
                pools.clear()

    @contextmanager
    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body = b"",
        idle_timeout_s: float | None = None,
    ) -> Iterator[HttpResponse]:
        """Yield the answer, whatever its status; its body is to be read before the block ends.

        Raises
        ------
        NoResponseError
            None came; the cause is chained.
        OSError
            The file to send cannot be opened.
        """
        told, asked = {**self._headers, **(headers or {})}, [url]
        while True:
            response = self._exchange(method, asked[-1], told, body, idle_timeout_s or self._silent_s)
            place = response.get_redirect_location() if self._follow and method in ("GET", "HEAD") else None
            if not place:
                break
            _leave(response, _DRAINED)
            if len(asked) > _REDIRECTS:
                raise NoResponseError(
                    _("it redirects more than {redirects} times").format(redirects=_REDIRECTS), "address", _host(url)
                )
            with _told(url):
                asked.append(urljoin(asked[-1], place))
                abroad = urlsplit(asked[-2])[:2] != urlsplit(asked[-1])[:2]
            if abroad:
                told = {name: value for name, value in told.items() if name.title() != "Authorization"}
        try:
            yield HttpResponse(response, tuple(asked))
        finally:
            _leave(response)

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: Body = b""
    ) -> HttpResponse:
        """As `stream`; return the answer with its body read."""
        with self.stream(method, url, headers=headers, body=body) as answer:
            answer.read_body()
            return answer

    def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: Body, silent_s: float
    ) -> BaseHTTPResponse:
        from urllib3 import Timeout

        with ExitStack() as stack, _told(url):
            parts = _parts(url)
            sent, size = _opened(body, stack)
            given = {**_login(parts, self._netrc), **headers}
            if isinstance(body, FileBody):
                given["Content-Length"] = str(size)
            # Until the answer is waited for, urllib3's limit to connect is that of each piece sent, too.
            connect_s = min(CONNECT_S, silent_s) if isinstance(body, bytes) else silent_s
            return self._pool(parts).urlopen(
                method,
                parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
                headers=given,
                body=sent,
                timeout=Timeout(connect=connect_s, read=silent_s),
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
            )

    def _pool(self, parts: SplitResult) -> PoolManager:
        """Return the connections to a host: straight, or through the proxy that is set for it."""
        from urllib3 import PoolManager, ProxyManager, make_headers

        known = self._proxies.get(parts.scheme) or self._proxies.get("all")
        proxy = known if known and not proxy_bypass(parts.hostname or "") else ""
        with self._lock:
            if found := self._pools.get((parts.scheme, proxy)):
                return found
            settings: dict[str, Any] = {"num_pools": 64, "maxsize": self._connections, "block": True}
            if parts.scheme == "https":
                settings["ssl_context"] = self._trust()
            if proxy:
                through = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
                if through.scheme not in ("http", "https") or not through.hostname:
                    raise ValueError(
                        _("unsupported protocol of the proxy {hostname}: {scheme}").format(
                            hostname=through.hostname, scheme=through.scheme
                        )
                    )
                login = make_headers(proxy_basic_auth=_userinfo(through)) if through.username else None
                made: PoolManager = ProxyManager(through.geturl(), proxy_headers=login, **settings)
            else:
                made = PoolManager(**settings)
            return self._pools.setdefault((parts.scheme, proxy), made)


def create_client(
    settings: NetworkSettings, *, idle_timeout_s: float = READ_TIMEOUT_S, max_connections: int = _CONNECTIONS
) -> HttpClient:
    """Return what asks for pages and files with this machine's certificates, proxies and logins."""
    return HttpClient(
        make_tls_context_factory(settings.ca_bundle),
        max_connections=max_connections,
        idle_timeout_s=idle_timeout_s,
        use_netrc=True,
    )


def create_loopback_client(idle_timeout_s: float, headers: Mapping[str, str] | None = None) -> HttpClient:
    """Return what asks services of this machine: no proxy, no login, and redirects are answers."""
    return HttpClient(idle_timeout_s=idle_timeout_s, use_proxies=False, follow_redirects=False, headers=headers)


def make_tls_context_factory(ca_bundle: str) -> Callable[[], ssl.SSLContext]:
    """Return what makes a context that trusts a site's bundle; without one, the system's certificates and certifi's."""

    def trust() -> ssl.SSLContext:
        import certifi

        context = ssl.create_default_context(cafile=ca_bundle or certifi.where())
        if not ca_bundle:
            context.load_default_certs()
        return context

    return trust


def retry(
    action: Callable[[], T],
    on: type[Exception] | tuple[type[Exception], ...] = NoResponseError,
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
            if isinstance(error, NoResponseError) and error.kind == "address":
                raise
            wait_s = retry_delay_s(attempt, getattr(error, "retry_after", ""))
            what = getattr(error, "what", "") or error
            on_retry(f"attempt {attempt} of {attempts} failed: {what}; again in {limit_text(wait_s)}")
            pause(wait_s)
    return action()


def retry_delay_s(attempt: int, retry_after: str = "") -> float:
    """Return how long to wait after a failed attempt, in seconds: 0.5, 1, 2, or what the server says, up to 30."""
    from urllib3 import Retry
    from urllib3.exceptions import InvalidHeader

    try:
        return min(Retry().parse_retry_after(retry_after), _LONGEST_PAUSE_S)
    except InvalidHeader:
        return min(0.25 * 2.0**attempt, _LONGEST_PAUSE_S)


def _parts(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(_("unsupported protocol in {url!r}").format(url=url))
    return parts


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _userinfo(parts: SplitResult) -> str:
    return f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"


def _login(parts: SplitResult, known: netrc | None) -> Mapping[str, str]:
    """Return the header with the login that an address holds, or that this machine keeps for its host."""
    login = _userinfo(parts) if parts.username else ""
    if not login and known and (found := known.authenticators(parts.hostname or "")):
        login = f"{found[0]}:{found[2]}" if found[2] else ""
    return {"Authorization": f"Basic {b64encode(login.encode()).decode()}"} if login else {}


def _opened(body: Body, stack: ExitStack) -> tuple[Any, int]:
    """Return a body as urllib3 takes it, and the bytes of a file."""
    if not isinstance(body, FileBody):
        return body or None, 0
    file = stack.enter_context(body.path.open("rb"))
    size = os.fstat(file.fileno()).st_size

    def pieces() -> Iterator[bytes]:
        sent = 0
        while sent < size:
            if not (piece := file.read(min(_BLOCK, size - sent))):
                raise ValueError(_("the file became shorter while it was sent"))
            yield piece
            sent += len(piece)

    return pieces(), size


def _leave(response: BaseHTTPResponse, drained: int = 0) -> None:
    """Give the connection back, or close it when more than `drained` bytes of the body were left unread."""
    if (left := response.length_remaining) is not None and left <= drained:
        response.drain_conn()
    response.close()
    response.release_conn()


@contextmanager
def _told(url: str) -> Iterator[None]:
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (HTTPError, HTTPException, ssl.SSLError, ValueError) as error:
        words, kind = _judged(error)
        raise NoResponseError(words, kind, _host(url)) from error


def _judged(error: Exception) -> tuple[str, NoResponseKind]:
    """Return what a failure says at its root, and what it comes to."""
    from urllib3 import exceptions as of

    root: BaseException = error
    while inner := root.__cause__ or next((one for one in root.args if isinstance(one, Exception)), None):
        root = inner
    missing = getattr(root, "expected", None)
    words = f"{missing} bytes are missing" if isinstance(missing, int) else strip_errno(root)
    match error, root:
        case ((of.ConnectTimeoutError() | of.ProxyError()), TimeoutError()):
            return words, "late"
        case _, TimeoutError():
            return words, "silent"
        case _, ssl.SSLCertVerificationError():
            return words, "untrusted"
        case _, (ssl.SSLEOFError() | ssl.SSLZeroReturnError()):
            return words, "cut"
        case ((of.NewConnectionError() | of.ProxyError() | of.SSLError() | ssl.SSLError()), _):
            return words, "unreached"
        case ((of.LocationValueError() | of.InvalidHeader()), _):
            return words, "address"
        case ((of.HTTPError() | HTTPException()), _):
            return words, "cut"
        case _:
            return words, "address"
