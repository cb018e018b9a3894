"""`rlbox store`, and `rlbox prune`, which cleans up more."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest
from fakes import EngineSocket, Folder, Rlbox, Said
from following import Follow

from rlbox.artifacts.object_store import ObjectStore
from rlbox.artifacts.store_upkeep import record_fetched_lock
from rlbox.system.file_lock import hold_lock
from rlbox.system.files import cache_path
from rlbox.target.lock import HttpFile, Lock, LockedPackageGroup

pytestmark = pytest.mark.allow("processes")

ONE, TWO, LOST = b"one", b"two" * 1000, b"lost"
SPEC = """
title = "smallest"
[base]
bootstrap = "debian:bookworm"
[[stack]]
name = "engine"
packages = ["six==1.16.0"]
"""


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def store(folder: Folder) -> ObjectStore:
    """A store with two objects of one lock, and one that no lock names."""
    made = ObjectStore(cache_path("store"))
    for data in (ONE, TWO, LOST):
        with made.wait_for_partial(sha(data)) as draft:
            draft.write(data)
            draft.commit()
    folder.target("mine", SPEC)
    files = tuple(
        HttpFile(name=f"n{n}", url=f"http://h/n{n}.bin", sha256=sha(d), size=len(d)) for n, d in enumerate((ONE, TWO))
    )
    head = {"target": "mine", "spec": "", "python": "3.11", "platform": "linux", "base": "debian:bookworm"}
    lock = Lock(**head, runtime=LockedPackageGroup(name="runtime", packages=()), groups=(), http=files)
    path = folder.write("images/mine/lock.json", lock.to_json_text())
    record_fetched_lock(made, "mine", path)
    return made


def flip(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def test_ls(rlbox: Rlbox, store: ObjectStore) -> None:
    with store.wait_for_partial("f" * 64) as draft:
        draft.write(b"half")
    rows = {
        sha(ONE): f"{sha(ONE)[:12]}        3 B  n0.bin (http, http; mine)\n",
        sha(TWO): f"{sha(TWO)[:12]}     3.0 kB  n1.bin (http, http; mine)\n",
        sha(LOST): f"{sha(LOST)[:12]}        4 B  unknown: no lock that was fetched names it\n",
    }
    text = "".join(rows[digest] for digest in sorted(rows))
    text += "ffffffffffff        4 B  half written\n" + f"3 objects, 3.0 kB in {store.root}\n"
    assert rlbox("store", "ls") == Said(code=0, out=text, err="")
    data = rlbox("store", "ls", "--json").data
    assert {row["digest"]: (row["file"], row["targets"]) for row in data["objects"]} == {
        sha(ONE): ("n0.bin", ["mine"]),
        sha(TWO): ("n1.bin", ["mine"]),
        sha(LOST): (None, []),
    }
    assert (data["bytes"], data["partial"]) == (3007, {"f" * 64: 4})


def test_an_empty_store(rlbox: Rlbox) -> None:
    where = cache_path("store")
    assert rlbox("store", "ls").out == f"0 objects, 0 B in {where}\n"
    assert rlbox("store", "verify").out == "0 objects are intact\n"
    assert not where.exists()


def test_verify(rlbox: Rlbox, store: ObjectStore) -> None:
    assert rlbox("store", "verify") == Said(code=0, out="3 objects are intact\n", err="")
    flip(store.path(sha(TWO)))
    rlbox("store", "verify").check_error(1, "1 of 3 objects are damaged", "rlbox store verify --fix")
    assert store.has(sha(TWO))
    assert rlbox("store", "verify", "--fix") == Said(
        code=0, out=f"removed {sha(TWO)[:12]}  n1.bin (http, http; mine)\n2 objects are intact\n", err=""
    )
    assert rlbox("store", "verify", "--json").data == {
        "schema": 1,
        "store": str(store.root),
        "objects": 2,
        "removed": [],
    }


@pytest.mark.allow("sockets", "processes")
def test_prune_of_a_lock_that_is_broken_or_gone(
    rlbox: Rlbox, store: ObjectStore, folder: Folder, engine: EngineSocket
) -> None:
    (folder.path / "images/mine/lock.json").write_text("{")
    said = rlbox("prune", "--yes")
    assert (said.code, "not a lock file" in said.err) == (2, True)
    (folder.path / "images/mine/lock.json").unlink()
    assert rlbox("prune", "--yes", "--json").data["bytes"] == 3007
    assert list(store.list_digests()) == []
    assert not list((store.root / "names").iterdir())


@pytest.mark.allow("sockets", "processes")
def test_one_verb_cleans_up(rlbox: Rlbox, engine: EngineSocket, store: ObjectStore) -> None:
    labels = {"Config": {"Labels": {"rlbox.target": "mine"}}, "Size": 1000}
    replaced = "sha256:" + "9" * 64
    engine.images |= {replaced: {"Id": replaced, **labels}, "rlbox/mine:ann-0a1b2c": {"Id": "sha256:1", **labels}}
    dry = rlbox("prune", "--dry-run")
    assert dry.out == (
        f"would remove {replaced[:19]}, 1.0 kB: replaced by a later build\n"
        f"would remove 1 files of {store.root}, 4 B\nwould free up to 1.0 kB\n\n"
        "# verdict: this would free up to 1.0 kB\n"
    )
    refused = rlbox("prune")
    assert (refused.code, "--yes to remove 1 images, 1 files and 0 caches, up to 1.0 kB" in refused.err) == (2, True)
    assert (len(engine.images), store.path(sha(LOST)).exists()) == (2, True)
    assert rlbox("prune", "--yes").out == "freed up to 1.0 kB\n"
    assert (list(engine.images), store.path(sha(LOST)).exists()) == (["rlbox/mine:ann-0a1b2c"], False)
    assert store.path(sha(ONE)).exists()
    assert rlbox("prune", "--dry-run").out.endswith("# verdict: this would remove nothing\n")


@pytest.mark.allow("sockets", "processes")
def test_it_cleans_up_without_an_engine(rlbox: Rlbox, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///srv/absent.sock")
    said = rlbox("prune", "--yes")
    assert (said.code, said.out) == (0, "freed up to 4 B\n"), said.err
    assert "images: not looked at: cannot connect to Docker\n" in said.err
    assert not store.path(sha(LOST)).exists()


def cache_file(name: str, *, unused_days: float = 0) -> Path:
    path = cache_path(*name.split("/"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    at = time.time() - unused_days * 86_400
    for one in (path, path.parent):
        os.utime(one, (at, at))
    return path


@pytest.mark.allow("sockets", "processes")
def test_prune_removes_old_cache_entries(rlbox: Rlbox, engine: EngineSocket) -> None:
    old, new, place = (
        cache_file(f"{name}/mine/file", unused_days=days)
        for name, days in (("contexts", 40), ("logs", 2), ("places", 40))
    )
    assert "would remove 1 caches not used for 30 days, " in rlbox("prune", "--dry-run").out
    assert rlbox("prune", "--yes").code == 0
    assert [path.exists() for path in (old, new, place)] == [False, True, True]
    assert [*cache_path("contexts").iterdir()] == []


@pytest.mark.allow("sockets", "processes")
def test_caches_stay_while_another_builds(follow: Follow, engine: EngineSocket) -> None:
    old = cache_file("contexts/mine/file", unused_days=40)
    with hold_lock(cache_path("locks", "build-mine.lock"), "build of mine"):
        step = follow("prune", "--yes")
        assert old.exists()
    follow.again(step)
    assert not old.exists()
