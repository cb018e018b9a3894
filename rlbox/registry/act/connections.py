"""HTTP by the standard library: connections that are kept, redirects, proxies, files sent by the kernel.

For registries. Importing httpx takes 0.15 s of processor time: as much as pushing a small image does.
"""

from __future__ import annotations

import base64
import os
import select
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from threading import Lock
from typing import BinaryIO
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

CHUNK = 1 << 20
_PIECE = 4 << 20
_CONNECT_S = 15.0
_SILENCE_S = 60.0
_SETTLED_PER_S = 10e6  # bytes; a registry that keeps its blobs elsewhere moves them there before it answers
_REDIRECTS = (301, 302, 303, 307, 308)
_FOLLOWED = 10
_DRAINED = 1 << 16

Content = bytes | Path


class NoAnswer(Exception):
    """No answer came, or only a part of one."""


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """What is asked; `on_sent` is told how many bytes of a file are sent by now, each time some were."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    content: Content = b""
    on_sent: Callable[[int], None] = lambda sent: None


class Answer:
    """An answer, its body still to be read; reading raises `NoAnswer`."""

    def __init__(self, url: str, response: HTTPResponse) -> None:
        self.url, self.status, self.reason, self.headers = url, response.status, response.reason, response.headers
        self._response = response
        self._body: bytes | None = None

    def read(self) -> bytes:
        """Return the whole body, as often as it is asked for."""
        if self._body is None:
            self._body = b"".join(self.chunks())
        return self._body

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it comes, once."""
        try:
            while chunk := self._response.read(CHUNK):
                yield chunk
        except (OSError, HTTPException) as error:
            raise NoAnswer(_words(error)) from error
        if self._response.length:
            raise NoAnswer(f"the connection broke, {self._response.length} bytes are missing")


class Connections:
    """Connections to whatever is asked; any number of threads may ask at once.

    Parameters
    ----------
    trust
        Makes the context for TLS; called when a connection first needs it.
    use_proxies
        Whether `https_proxy`, `no_proxy` and their like count.
    """

    def __init__(self, trust: Callable[[], ssl.SSLContext], *, use_proxies: bool) -> None:
        self._trust = trust
        self._use_proxies = use_proxies
        self._context: ssl.SSLContext | None = None
        self._idle: list[tuple[str, HTTPConnection]] = []
        self._lock = Lock()

    def close(self) -> None:
        """Close the connections that are not in use."""
        with self._lock:
            while self._idle:
                self._idle.pop()[1].close()

    @contextmanager
    def ask(self, request: HttpRequest) -> Iterator[Answer]:
        """Yield the answer; a GET or HEAD follows redirects, without its login where they lead elsewhere.

        Raises
        ------
        Broken
            None came; the cause is chained.
        OSError
            The file to send cannot be read.
        """
        for _ in range(_FOLLOWED):
            with self._exchange(request) as answer:
                place = answer.headers.get("Location", "") if answer.status in _REDIRECTS else ""
                if not place or request.method not in ("GET", "HEAD"):
                    yield answer
                    return
            request = _redirected(request, place)
        raise NoAnswer(f"it redirects more than {_FOLLOWED} times")

    @contextmanager
    def _exchange(self, request: HttpRequest) -> Iterator[Answer]:
        parts = urlsplit(request.url)
        origin = f"{parts.scheme}://{parts.netloc}"
        with ExitStack() as stack:
            content = request.content
            file = stack.enter_context(open(content, "rb")) if isinstance(content, Path) else None
            try:
                connection = self._take(origin) or self._connect(parts)
                stack.callback(connection.close)
                response = _converse(connection, request, file)
            except (OSError, HTTPException, ValueError) as error:
                raise NoAnswer(_words(error)) from error
            answer = Answer(request.url, response)
            yield answer
            if response.length is not None and response.length <= _DRAINED:
                answer.read()
            if response.isclosed() and not response.will_close:
                stack.pop_all()
                with self._lock:
                    self._idle.append((origin, connection))

    def _take(self, origin: str) -> HTTPConnection | None:
        """Return a connection that waits; one that speaks without being asked has been closed by the other side."""
        while True:
            with self._lock:
                found = next((pair for pair in self._idle if pair[0] == origin), None)
                if found is None:
                    return None
                self._idle.remove(found)
            if not select.select([found[1].sock], [], [], 0)[0]:
                return found[1]
            found[1].close()

    def _connect(self, parts: SplitResult) -> HTTPConnection:
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"unsupported protocol in {parts.geturl()!r}")
        proxy = _proxy(parts) if self._use_proxies else None
        made: HTTPConnection
        if parts.scheme == "https":
            with self._lock:
                context = self._context = self._context or self._trust()
            made = HTTPSConnection((proxy or parts).hostname or "", _port(proxy or parts), context=context)
            if proxy:
                made.set_tunnel(parts.hostname, _port(parts), _proxy_login(proxy))
        else:
            made = _PlainProxy(proxy) if proxy else HTTPConnection(parts.hostname, _port(parts))
        made.timeout = _CONNECT_S
        made.connect()
        return made


class _PlainProxy(HTTPConnection):
    """A proxy that is asked for http addresses."""

    def __init__(self, proxy: SplitResult) -> None:
        super().__init__(proxy.hostname or "", _port(proxy))
        self.login = _proxy_login(proxy)


def _converse(connection: HTTPConnection, request: HttpRequest, file: BinaryIO | None) -> HTTPResponse:
    """Send the request and return the answer, which may come while the file is still being sent."""
    content = request.content if isinstance(request.content, bytes) else b""
    size = os.fstat(file.fileno()).st_size if file else len(content)
    connection.sock.settimeout(_SILENCE_S)
    _put_head(connection, request, size)
    connection.endheaders(content or None)
    failure = _send_file(connection, file, size, request.on_sent) if file else None
    connection.sock.settimeout(_SILENCE_S + size / _SETTLED_PER_S)
    try:
        return connection.getresponse()
    except (OSError, HTTPException) as error:
        raise failure or error from error


def _put_head(connection: HTTPConnection, request: HttpRequest, size: int) -> None:
    path = urlsplit(request.url)._replace(scheme="", netloc="", fragment="").geturl()
    headers = dict(request.headers)
    if isinstance(connection, _PlainProxy):
        path, headers = request.url, {**headers, **connection.login}
    if size or request.method not in ("GET", "HEAD"):
        headers["Content-Length"] = str(size)
    connection.putrequest(request.method, path or "/")
    for name, value in headers.items():
        connection.putheader(name, value)


def _send_file(connection: HTTPConnection, file: BinaryIO, size: int, on_sent: Callable[[int], None]) -> OSError | None:
    """Send a file; return what broke it off, which the answer may explain."""
    sent = 0
    try:
        while sent < size:
            if isinstance(connection.sock, ssl.SSLSocket):
                data = file.read(CHUNK)
                connection.sock.sendall(data)
                count = len(data)
            else:
                count = connection.sock.sendfile(file, sent, min(_PIECE, size - sent))
            if not count:
                raise ValueError("the file became shorter while it was sent")
            sent += count
            on_sent(sent)
    except (BrokenPipeError, ConnectionResetError) as error:
        return error
    return None


def _redirected(request: HttpRequest, place: str) -> HttpRequest:
    url = urljoin(request.url, place)
    headers = request.headers
    if urlsplit(url)[:2] != urlsplit(request.url)[:2]:
        headers = {name: value for name, value in headers.items() if name != "Authorization"}
    return replace(request, url=url, headers=headers)


def _proxy(parts: SplitResult) -> SplitResult | None:
    from urllib.request import getproxies, proxy_bypass

    known = getproxies()
    address = known.get(parts.scheme) or known.get("all")
    if not address or proxy_bypass(parts.hostname or ""):
        return None
    proxy = urlsplit(address if "://" in address else f"http://{address}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise ValueError(f"unsupported protocol of the proxy {proxy.hostname}: {proxy.scheme}")
    return proxy


def _proxy_login(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
