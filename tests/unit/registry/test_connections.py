"""Requests by the standard library: kept connections, early refusals, broken answers, proxies, TLS."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from registry_server import Fault, RegistryServer, running

from rlbox.registry.act.connections import Connections, HttpRequest, NoAnswer

pytestmark = pytest.mark.allow("sockets")


def never() -> ssl.SSLContext:
    raise AssertionError("TLS was not asked for")


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with running() as server:
        yield server


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yield the address of a server that leaves each connection to `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def head_of(connection: socket.socket) -> str:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    return data.decode()


def test_a_connection_is_kept(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    connections = Connections(never, use_proxies=False)
    made: list[object] = []
    connect = connections._connect
    monkeypatch.setattr(connections, "_connect", lambda parts: made.append(parts) or connect(parts))
    for method in ("GET", "HEAD", "GET"):
        with connections.ask(HttpRequest(method=method, url=f"http://{server.host}/v2/")) as answer:
            assert (answer.status, answer.read()) == (200, b"{}" if method == "GET" else b"")
    assert len(made) == 1
    server.faults = [Fault("GET", "/v2/", 0)]
    with pytest.raises(NoAnswer), connections.ask(HttpRequest(method="GET", url=f"http://{server.host}/v2/")):
        pass
    with connections.ask(HttpRequest(method="GET", url=f"http://{server.host}/v2/")) as answer:
        assert answer.status == 200
    assert len(made) == 2
    connections.close()


def test_a_connection_that_the_other_side_closed_is_not_used_again() -> None:
    def once(connection: socket.socket) -> None:
        head_of(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with answering(once) as url:
        connections = Connections(never, use_proxies=False)
        for _ in range(3):
            with connections.ask(HttpRequest(method="GET", url=url)) as answer:
                assert answer.read() == b"ok"
            assert select.select([connections._idle[0][1].sock], [], [], 10)[0]  # its end has come


def test_a_refusal_in_the_middle_of_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(bytes(64 << 20))
    sent: list[int] = []

    def refuse(connection: socket.socket) -> None:
        assert "Content-Length: 67108864" in head_of(connection)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20):
            pass

    with answering(refuse) as url:
        request = HttpRequest(method="PUT", url=url, content=tmp_path / "blob", on_sent=sent.append)
        with Connections(never, use_proxies=False).ask(request) as answer:
            assert (answer.status, answer.reason) == (413, "Too Large")
    assert (sent, sent[-1]) == (sorted(sent), 64 << 20)


def test_a_body_that_is_cut_short() -> None:
    def cut(connection: socket.socket) -> None:
        head_of(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    with (
        answering(cut) as url,
        pytest.raises(NoAnswer, match="96 bytes are missing"),
        Connections(never, use_proxies=False).ask(HttpRequest(method="GET", url=url)) as answer,
    ):
        answer.read()


def test_silence_in_the_middle_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.registry.act.connections._SILENCE_S", 0.2)
    (tmp_path / "blob").write_bytes(bytes(64 << 20))
    end = threading.Event()

    def silent(connection: socket.socket) -> None:
        head_of(connection)
        end.wait(20)

    with answering(silent) as url:
        with (
            pytest.raises(NoAnswer) as caught,
            Connections(never, use_proxies=False).ask(HttpRequest(method="PUT", url=url, content=tmp_path / "blob")),
        ):
            pass
        end.set()
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_redirects_have_an_end(server: RegistryServer) -> None:
    server.faults = [Fault("GET", "/v2/", 307, headers={"Location": "/v2/"}, times=99)]
    with (
        pytest.raises(NoAnswer, match="redirects more than 10 times"),
        Connections(never, use_proxies=False).ask(HttpRequest(method="GET", url=f"http://{server.host}/v2/")),
    ):
        pass


def test_a_proxy_is_asked_for_the_whole_address(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[str] = []

    def proxy(connection: socket.socket) -> None:
        heads.append(head_of(connection))
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with answering(proxy) as url:
        monkeypatch.setenv("http_proxy", url.replace("//", "//mira:open%20sesame@"))
        monkeypatch.setenv("https_proxy", url.replace("http:", "socks5:"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        connections = Connections(never, use_proxies=True)
        with connections.ask(HttpRequest(method="GET", url="http://registry.example/v2/?x=1")) as answer:
            assert answer.read() == b"ok"
        with pytest.raises(NoAnswer, match=r"unsupported protocol of the proxy .*: socks5"):
            connections.ask(HttpRequest(method="GET", url="https://registry.example/")).__enter__()
        with pytest.raises(NoAnswer):
            connections.ask(HttpRequest(method="GET", url="http://127.0.0.1:1/")).__enter__()
    first = heads[0].splitlines()
    assert (first[0], len(heads)) == ("GET http://registry.example/v2/?x=1 HTTP/1.1", 1)
    assert "Host: registry.example" in first
    assert "Proxy-Authorization: Basic bWlyYTpvcGVuIHNlc2FtZQ==" in first


def test_a_tunnel_for_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[str] = []

    def proxy(connection: socket.socket) -> None:
        heads.append(head_of(connection))
        connection.sendall(b"HTTP/1.1 502 no way\r\n\r\n")

    with answering(proxy) as url:
        monkeypatch.setenv("https_proxy", url)
        monkeypatch.delenv("no_proxy", raising=False)
        connections = Connections(ssl.create_default_context, use_proxies=True)
        with pytest.raises(NoAnswer, match="502 no way"):
            connections.ask(HttpRequest(method="GET", url="https://registry.example/v2/")).__enter__()
    assert heads[0].startswith("CONNECT registry.example:443 ")


@pytest.mark.parametrize("url", ["", "token", "ftp://x/", "http:///v2/"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(NoAnswer, match="unsupported protocol in"):
        Connections(never, use_proxies=False).ask(HttpRequest(method="GET", url=url)).__enter__()
