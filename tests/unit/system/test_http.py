"""The one HTTP layer: kept connections, redirects, proxies, logins, files sent, broken answers, waits, retries."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlbox.system.http import (
    HttpClient,
    NoFullResponseError,
    NoResponseKind,
    create_loopback_client,
    create_netrc_client,
    create_tls_context,
    describe_response_error,
    retry,
)
from rlbox.system.network_settings import NetworkSettings

pytestmark = pytest.mark.allow("sockets")

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SIZE = 64 << 20


class Talk:
    """A server: `answer` gets each connection, which is closed when it returns; `heads` are those that were read."""

    def __init__(self, answer: Callable[[Talk, socket.socket], None]) -> None:
        self.heads: list[str] = []
        self.connections = 0
        self.end = threading.Event()
        self.after = b""
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"http://{self.host}"
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._threads.append(threading.Thread(target=self._one, args=(connection,)))
            self._threads[-1].start()

    def _one(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._answer(self, connection)
            except OSError:
                return

    def head(self, connection: socket.socket) -> str:
        """Read a request's head; empty when the other side has closed. What came behind it is in `after`."""
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := connection.recv(1 << 16)):
                return ""
            data += more
        head, _, self.after = data.partition(b"\r\n\r\n")
        self.heads.append(head.decode() + "\r\n")
        return self.heads[-1]

    def whole(self, connection: socket.socket) -> str:
        """Read a request with its body: closed before, the connection would be reset, and the answer lost."""
        head = self.head(connection)
        length = re.search(r"(?im)^content-length: (\d+)", head)
        while length and len(self.after) < int(length[1]) and (more := connection.recv(1 << 16)):
            self.after += more
        return head

    def close(self) -> None:
        """End the server."""
        self.end.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)


@contextmanager
def answering(answer: Callable[[Talk, socket.socket], None]) -> Iterator[Talk]:
    """Yield a server that leaves each connection to `answer`."""
    talk = Talk(answer)
    try:
        yield talk
    finally:
        talk.close()


def always(text: bytes) -> Callable[[Talk, socket.socket], None]:
    """Answer every request of a connection with the same bytes."""

    def answer(talk: Talk, connection: socket.socket) -> None:
        while talk.whole(connection):
            connection.sendall(text)

    return answer


def once(text: bytes) -> Callable[[Talk, socket.socket], None]:
    """Answer one request and close."""

    def answer(talk: Talk, connection: socket.socket) -> None:
        talk.whole(connection)
        connection.sendall(text)

    return answer


def failure(url: str, http: HttpClient | None = None, **more: object) -> NoFullResponseError:
    with (
        pytest.raises(NoFullResponseError) as caught,
        http or HttpClient(use_proxies=False, idle_timeout_s=0.3) as asking,
    ):
        asking.request("GET", url, **more)  # type: ignore[arg-type]
    return caught.value


def test_json_and_bodies() -> None:
    with answering(once(b'HTTP/1.1 201 Made\r\nConnection: close\r\n\r\n{"a": [1]}')) as server, HttpClient() as http:
        answer = http.request("POST", server.url + "/x?y=1", headers={"Content-Type": "application/json"}, body=b"{}")
    assert (answer.status, answer.reason, answer.read_json(), answer.content_length) == (201, "Made", {"a": [1]}, None)
    head = server.heads[0]
    assert head.startswith("POST /x?y=1 HTTP/1.1\r\n")
    assert "Content-Length: 2\r\n" in head


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "Remote end closed connection without response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "5 more expected"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf", ""),
        (b"what?\r\n\r\n", ""),
    ],
)
def test_answers_that_are_cut(text: bytes, words: str) -> None:
    with answering(once(text)) as server:
        error = failure(server.url)
        assert (error.kind, describe_response_error(error), error.host) == (
            "cut",
            "breaks the connection off",
            "127.0.0.1",
        )
        assert words in str(error)
        with pytest.raises(NoFullResponseError), HttpClient() as http, http.stream("GET", server.url) as answer:
            list(answer.iter_bytes())


def test_silence() -> None:
    def silent(talk: Talk, connection: socket.socket) -> None:
        if talk.head(connection) and "/half" in talk.heads[-1]:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        talk.end.wait(20)

    with answering(silent) as server:
        for path in ("/none", "/half"):
            error = failure(server.url + path)
            assert (error.kind, describe_response_error(error)) == ("silent", "stalls: nothing came for too long")


def test_nobody_listens() -> None:
    error = failure("http://127.0.0.1:1/")
    assert (error.kind, str(error)) == ("unreached", "Connection refused")
    assert describe_response_error(error) == "cannot reach 127.0.0.1: Connection refused"
    assert isinstance(error.__cause__, Exception)


def test_a_connection_that_is_not_taken() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        error = failure(f"http://127.0.0.1:{full.getsockname()[1]}")
        for one in waiting:
            one.close()
    assert (error.kind, describe_response_error(error)) == ("silent", "stalls: nothing came for too long")


def test_plain_http_where_tls_is_asked_for() -> None:
    with answering(lambda talk, connection: connection.sendall(OK)) as server:
        error = failure(server.url.replace("http:", "https:"))
    assert error.kind in ("unreached", "cut")
    assert "SSL" in str(error)


def test_redirects_are_followed_to_their_end() -> None:
    moved = "HTTP/1.1 302 F\r\nConnection: close\r\nContent-Length: 0\r\nLocation: {}/b?c\r\n\r\n"
    with (
        answering(always(OK)) as other,
        answering(once(moved.format(other.url).encode())) as one,
        HttpClient(headers={"Authorization": "Bearer mine"}) as http,
    ):
        answer = http.request("GET", f"{one.url}/a")
        assert (answer.status, answer.urls, answer.url) == (
            200,
            (f"{one.url}/a", f"{other.url}/b?c"),
            f"{other.url}/b?c",
        )
        assert "Authorization: Bearer mine" in one.heads[0]
        assert "Authorization" not in other.heads[0]
        assert http.request("POST", one.url, body=b"x").status == 302
        assert create_loopback_client(1).request("GET", one.url).status == 302


def test_redirects_have_an_end() -> None:
    with answering(always(b"HTTP/1.1 307 T\r\nLocation: /again\r\nContent-Length: 3\r\n\r\nsee")) as server:
        error = failure(server.url)
    assert (error.kind, str(error), len(server.heads)) == ("address", "it redirects more than 10 times", 11)
    assert server.connections == 1


def test_logins_of_the_address_and_of_netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login mira password sesame\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with answering(always(OK)) as server:
        named = server.url.replace("//", "//bob:a%20b@")
        for http in (create_netrc_client(NetworkSettings()), HttpClient(), create_loopback_client(1)):
            with http:
                assert http.request("GET", server.url).status == 200
                assert http.request("GET", named).status == 200
    sent = [next((line for line in head.splitlines() if line.startswith("Auth")), "") for head in server.heads]
    own = "Authorization: Basic Ym9iOmEgYg=="
    assert sent == ["Authorization: Basic bWlyYTpzZXNhbWU=", own, "", own, "", own]
    assert all(f"Host: {server.host}\r\n" in head for head in server.heads)


def test_a_proxy_is_asked_for_the_whole_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(always(OK)) as proxy, answering(always(OK)) as here:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//mira:open%20sesame@"))
        monkeypatch.setenv("https_proxy", proxy.url.replace("http:", "socks5:"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with HttpClient() as http:
            assert http.request("GET", "http://registry.example/v2/?x=1").read_body() == b"ok"
            assert http.request("GET", here.url).read_body() == b"ok"
        error = failure("https://registry.example/", HttpClient())
        monkeypatch.setenv("no_proxy", "other.example")
        assert create_loopback_client(1).request("GET", here.url).read_body() == b"ok"
    first = proxy.heads[0].splitlines()
    assert (first[0], len(proxy.heads), len(here.heads)) == ("GET http://registry.example/v2/?x=1 HTTP/1.1", 1, 2)
    assert "Host: registry.example" in first
    assert "proxy-authorization: basic bwlyytpvcgvuihnlc2ftzq==" in [line.lower() for line in first]
    assert (error.kind, str(error)) == (
        "address",
        "Proxy URL had unsupported scheme socks5, should use http:// or https://",
    )


def test_a_tunnel_for_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(once(b"HTTP/1.1 502 no way\r\n\r\n")) as proxy:
        monkeypatch.setenv("all_proxy", proxy.host)
        monkeypatch.delenv("no_proxy", raising=False)
        error = failure("https://registry.example/v2/", HttpClient())
    assert proxy.heads[0].startswith("CONNECT registry.example:443 ")
    assert (error.kind, str(error)) == ("unreached", "Tunnel connection failed: 502 no way")


def test_what_is_trusted(tmp_path: Path) -> None:
    import certifi

    bundle = tmp_path / "ca.crt"
    bundle.write_text(
        Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"
    )
    assert len(create_tls_context(str(bundle)).get_ca_certs()) == 1
    assert len(create_tls_context("").get_ca_certs()) > 50


def test_what_may_pass_is_tried_again() -> None:
    waits: list[float] = []
    told: list[str] = []
    answers = iter([NoFullResponseError("a", "cut"), NoFullResponseError("b", "silent"), None])

    def action() -> str:
        if error := next(answers):
            raise error
        return "done"

    assert retry(action, pause=waits.append, on_retry=told.append) == "done"
    assert waits == [0.5, 1.0]
    assert [*map(str, told)] == ["attempt 1 of 4 failed: a; again in 0.5 s", "attempt 2 of 4 failed: b; again in 1 s"]


@pytest.mark.parametrize(("kind", "times"), [("cut", 4), ("address", 1)])
def test_what_does_not_pass_is_raised(kind: NoResponseKind, times: int) -> None:
    tried: list[int] = []

    def action() -> None:
        tried.append(1)
        raise NoFullResponseError("no", kind)

    with pytest.raises(NoFullResponseError):
        retry(action, pause=lambda wait_s: None)
    assert len(tried) == times
