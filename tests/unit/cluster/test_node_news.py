"""A node tells at once that something ended: its engine says so of containers, its keepers' records of processes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rlbox.cluster.programs import node_engine, node_files
from rlbox.cluster.programs.node_lives import Carried

pytestmark = pytest.mark.allow("sockets")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


class Engine:
    """An engine that tells events to whoever asks, one after the other; `asked` are the lines of the requests."""

    def __init__(self, path: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self.path, self.asked = str(path), list[str]()

    def answer(self) -> socket.socket:
        one, _ = self._listening.accept()
        self.asked.append(one.recv(4096).decode().splitlines()[0])
        one.sendall(HEAD)
        return one

    def close(self) -> None:
        self._listening.close()


def event(id_: str) -> bytes:
    line = json.dumps({"Type": "container", "Action": "die", "id": id_}).encode() + b"\n"
    return f"{len(line):x}\r\n".encode() + line + b"\r\n"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with closing(Engine(tmp_path / "engine")) as found:
        yield found


def test_what_an_engine_tells_is_passed_on_until_it_is_enough(engine: Engine) -> None:
    ended, told = threading.Event(), list[str]()
    heard = threading.Semaphore(0)

    def hear() -> None:
        for one in node_engine.ends(engine.path, ended):
            told.append(one)
            heard.release()

    listens = threading.Thread(target=hear, daemon=True)
    listens.start()
    with engine.answer() as way:
        for id_ in ("one", "two"):
            way.sendall(event(id_))
            assert heard.acquire(timeout=60)
        ended.set()
        listens.join(60)
    assert (told, listens.is_alive()) == (["one", "two"], False)
    assert "rlbox.cluster" in engine.asked[0]
    assert "die" in engine.asked[0]


def test_an_engine_that_is_started_anew_is_heard_again(engine: Engine, tmp_path: Path) -> None:
    ended, parts = threading.Event(), list[dict[str, object]]()
    news = threading.Semaphore(0)

    def take(part: dict[str, object]) -> None:
        parts.append(part)
        news.release()

    lives = Carried(engine.path, str(tmp_path), lambda: ([], b""))
    watch = threading.Thread(target=lives.tell_news, args=(True, take, ended), daemon=True)
    watch.start()
    for id_ in ("one", "two"):
        with engine.answer() as way:
            way.sendall(event(id_))
            while id_ not in [part.get("ended") for part in parts]:  # that it is watched may be told behind it
                assert news.acquire(timeout=60)
    ended.set()
    watch.join(60)
    assert [part["ended"] for part in parts if part] == ["one", "two"]


def test_a_disk_that_fills_is_told_and_one_that_has_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free, ended, parts = [1000], threading.Event(), list[dict[str, dict[str, int]]]()
    monkeypatch.setattr("rlbox.cluster.programs.node_lives._LOOK_S", 0.01)
    monkeypatch.setattr(node_files, "disk_facts", lambda path: {"there": True, "free": free[0], "size": 1000})

    def take(part: dict[str, dict[str, int]]) -> None:
        if not part:
            return
        parts.append(part)
        free[0] = 1000 - free[0]
        if len(parts) == 2:
            ended.set()

    watch = threading.Thread(target=Carried("", str(tmp_path), lambda: ([], b"")).tell_news, args=(False, take, ended))
    free[0] = 0
    watch.start()
    watch.join(60)
    assert [part["disk"]["free"] for part in parts] == [0, 1000]
