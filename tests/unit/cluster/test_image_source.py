"""Where the parts of an image come from: the engine brings what is wanted, and a push that fails ends all waiting."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlbox.cluster.image_sync import ImageSource
from rlbox.cluster.push_receiver import PushReceiver
from rlbox.errors import EngineError, RegistryError

DATA = {f"sha256:{hashlib.sha256(data).hexdigest()}": data for data in (b"one" * 90_000, b"two" * 7, b"three")}
ONE, TWO, THREE = DATA


class Played(ImageSource):
    """One whose pushes are given as functions, one after the other."""

    def __init__(self, folder: Path, *pushes: Callable[[Played], None]) -> None:
        super().__init__("tag", {}, PushReceiver(folder), "127.0.0.1:9")
        self.left, self.asked = list(pushes), 0

    def _push(self) -> None:
        self.asked += 1
        self.left.pop(0)(self)

    def bring(self) -> None:
        """Bring what is wanted, as an engine does that asks for each part whether it is there."""
        for digest, data in DATA.items():
            if self.spool.missing(digest):
                self.spool.add([data])

    def read(self, digest: str) -> bytes:
        return b"".join(self.blocks(digest, 0, len(DATA[digest])))


def refuse(source: Played) -> None:
    raise RegistryError("no room for the push")


def test_a_part_is_brought_once(tmp_path: Path) -> None:
    source = Played(tmp_path, Played.bring, Played.bring)
    assert [source.read(digest) for digest in (ONE, ONE, TWO)] == [DATA[ONE], DATA[ONE], DATA[TWO]]
    assert source.asked == 2


def test_a_push_that_fails_ends_all_waiting_and_the_next_asks_anew(tmp_path: Path) -> None:
    def late(source: Played) -> None:
        until = time.monotonic() + 30
        while not source._wanted >= {ONE, TWO} and time.monotonic() < until:
            time.sleep(0.001)
        refuse(source)

    source = Played(tmp_path, late, Played.bring)
    with ThreadPoolExecutor(2) as pool:
        for asked in [pool.submit(source.read, digest) for digest in (ONE, TWO)]:
            with pytest.raises(RegistryError, match="no room"):
                asked.result(30)
    assert [source.read(digest) for digest in (ONE, TWO)] == [DATA[ONE], DATA[TWO]]


def test_no_part_is_forgotten_where_a_push_just_ends(tmp_path: Path) -> None:
    """Many readers want parts just as pushes end: each part comes, whichever of the two is first."""
    for number in range(200):
        folder = tmp_path / str(number)
        folder.mkdir()
        source = Played(folder, *[Played.bring] * 9)
        with ThreadPoolExecutor(3) as pool:
            found: Iterator[bytes] = pool.map(source.read, DATA, timeout=30)
            assert [*found] == [*DATA.values()]


def test_an_engine_that_brings_no_more_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.cluster.push_receiver._STALLED_S", 0.05)
    spool = PushReceiver(tmp_path)
    with pytest.raises(EngineError, match="brings no more of the image") as told:
        [*spool.blocks(ONE, 0, 3)]
    assert told.value.where == ONE
