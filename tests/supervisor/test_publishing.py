"""Published ports lead to the loopback of their services, for who comes from the gateway alone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from supervised import free_port, service

from rlbox.supervise.ports import PublishedPortRelay

GATEWAY, ADDRESS, STRANGER = "127.0.0.1", "127.0.0.2", "127.0.0.3"


def echo(server: socket.socket) -> None:
    """Answer each connection with all that it said, once it has said it."""

    def answer(near: socket.socket) -> None:
        with near, near.makefile("rb") as said:
            near.sendall(said.read())

    with suppress(OSError):
        while True:
            threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server((GATEWAY, 0), backlog=128) as server:
        threading.Thread(target=echo, args=(server,), daemon=True).start()
        yield server.getsockname()[1]


@pytest.fixture
def published(port: int) -> Iterator[PublishedPortRelay]:
    carried = PublishedPortRelay({"web": port}, gateway=GATEWAY, address=ADDRESS)
    carried.start_relaying_published_ports(service("web", port))
    yield carried
    carried.close()


def ask(port: int, text: bytes, source: str = GATEWAY) -> bytes:
    with socket.create_connection((ADDRESS, port), 10, source_address=(source, 0)) as near:
        near.sendall(text)
        near.shutdown(socket.SHUT_WR)
        return near.makefile("rb").read()


def test_all_that_is_said_comes_and_goes(port: int, published: PublishedPortRelay) -> None:
    assert ask(port, b"x" * (5 << 20)) == b"x" * (5 << 20)
    assert len(published.inodes) == 1


def test_strangers_are_sent_away(port: int, published: PublishedPortRelay) -> None:
    with suppress(OSError):
        assert ask(port, b"give", STRANGER) == b""
    assert ask(port, b"give") == b"give"


def test_ports_are_closed_at_the_end(port: int, published: PublishedPortRelay) -> None:
    published.close()
    with pytest.raises(ConnectionRefusedError):
        ask(port, b"give")
    assert published.inodes == set()


def test_other_ports_stay_closed() -> None:
    port = free_port()
    carried = PublishedPortRelay({"other": port}, gateway=GATEWAY, address=ADDRESS)
    carried.start_relaying_published_ports(service("web", port))
    with pytest.raises(ConnectionRefusedError):
        ask(port, b"give")
    carried.close()
