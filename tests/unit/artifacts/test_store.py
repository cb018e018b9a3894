"""The store: whole objects or none, whoever dies when; locks, links, names, care."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import CHECKOUT, TARGET, Folder
from hypothesis import given
from hypothesis import strategies as st
from mirror import FakeLocator, artifact_of, serving

from rlbox.artifacts.fetch import fetch_missing_artifacts
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.artifacts.store_upkeep import (
    collect_digests_used_by_any_project,
    find_damaged_digests,
    find_unused_objects_and_partials,
    list_fetched_locks,
    map_sha256_to_recorded_file,
    record_fetched_lock,
    remove_objects_and_records_of_gone_lock_files,
)
from rlbox.errors import MachineError, SpecError, WorkFailed
from rlbox.system.files import cache_path
from rlbox.target.artifact import Artifact
from rlbox.target.lock import HttpFile, Lock, LockedPackageGroup

DATA = b"0123456789" * 1000
FILE = artifact_of(DATA, "six-1.16.0.whl")


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "store")


def put(store: ObjectStore, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    with store.wait_for_partial(digest) as draft:
        draft.write(data)
        draft.commit()
    return digest


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert resolve_store_dir(None) == cache_path("store")
    monkeypatch.setenv("RLBOX_STORE", "~/s")
    assert resolve_store_dir(None) == Path(os.environ["HOME"], "s")
    monkeypatch.chdir(tmp_path)
    assert resolve_store_dir("here") == tmp_path / "here"


def test_an_object(store: ObjectStore) -> None:
    assert (list(store.list_digests()), store.has(FILE.sha256), store.verify_and_mark_if_intact(FILE.sha256)) == (
        [],
        False,
        False,
    )
    assert put(store, DATA) == FILE.sha256
    assert files(store.root) == [f"objects/sha256/{FILE.sha256[:2]}/{FILE.sha256}"]
    assert store.path(FILE.sha256).read_bytes() == DATA
    assert store.has(FILE.sha256)
    assert store.verify_and_mark_if_intact(FILE.sha256, len(DATA))
    assert not store.verify_and_mark_if_intact(FILE.sha256, len(DATA) + 1)
    store.remove(FILE.sha256)
    assert not store.has(FILE.sha256)


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(0, 5))
def test_a_draft_is_continued(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], stop: int) -> None:
    store = ObjectStore(tmp_path_factory.mktemp("s"))
    whole = b"".join(parts)
    digest = hashlib.sha256(whole).hexdigest()
    with store.wait_for_partial(digest) as draft:
        for part in parts[:stop]:
            draft.write(part)
    left = b"".join(parts[:stop])
    assert store.count_partial_bytes(digest) == len(left)
    assert len(list(store.list_partials())) == bool(left)
    with store.wait_for_partial(digest) as draft:
        assert (draft.size, draft.digest_so_far) == (len(left), hashlib.sha256(left).hexdigest())
        for part in parts[stop:]:
            draft.write(part)
        draft.commit()
    assert store.path(digest).read_bytes() == whole
    assert list(store.list_partials()) == []


def test_wrong_bytes_are_never_kept(store: ObjectStore) -> None:
    with store.wait_for_partial(FILE.sha256) as draft:
        draft.write(b"other")
        with pytest.raises(ValueError, match="is not"):
            draft.commit()
    assert not store.has(FILE.sha256)


def test_one_writer_at_a_time(store: ObjectStore) -> None:
    with store.wait_for_partial(FILE.sha256) as draft:
        assert store.open_or_create_partial_unless_locked(FILE.sha256) is None
        draft.write(DATA)
        draft.commit()
    with store.wait_for_partial(FILE.sha256) as draft:
        assert draft.size == 0
    assert list(store.list_partials()) == []


def test_a_second_writer_waits(store: ObjectStore) -> None:
    seen = []

    def second() -> None:
        with store.wait_for_partial(FILE.sha256):
            seen.append(store.has(FILE.sha256))

    with store.wait_for_partial(FILE.sha256) as draft:
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.05)
        assert seen == []
        draft.write(DATA)
        draft.commit()
    thread.join()
    assert seen == [True]


def test_a_link(store: ObjectStore, tmp_path: Path) -> None:
    digest = put(store, DATA)
    path = tmp_path / "deep/er/six.whl"
    store.link_object_replacing_path(digest, path)
    store.link_object_replacing_path(digest, path)
    assert os.path.samefile(path, store.path(digest))
    assert files(tmp_path / "deep") == ["er/six.whl"]
    path.unlink()
    path.write_bytes(b"older")
    store.link_object_replacing_path(digest, path)
    assert path.read_bytes() == DATA
    with pytest.raises(WorkFailed, match=r"the store does not hold x \(ffff"):
        store.link_object_replacing_path("f" * 64, tmp_path / "x")


@pytest.mark.parametrize("linked", [True, False])
def test_adopting(store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool) -> None:
    if not linked:

        def refuse(*args: object) -> None:
            raise OSError(errno.EXDEV, "no")

        monkeypatch.setattr(os, "link", refuse)
    source = tmp_path / "six.whl"
    source.write_bytes(DATA)
    assert store.add_file_if_matching_return_actual_sha256(source, FILE.sha256) == FILE.sha256
    assert store.verify_and_mark_if_intact(FILE.sha256, len(DATA))
    assert os.path.samefile(source, store.path(FILE.sha256)) == linked
    assert store.add_file_if_matching_return_actual_sha256(source, "f" * 64) == FILE.sha256
    assert list(store.list_digests()) == [FILE.sha256]
    assert list(store.list_partials()) == []


def test_a_store_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = ObjectStore(tmp_path / "file")
    text = (
        f"the store cannot be written: Not a directory\n  where: {tmp_path}/file\n"
        "  next:  name another with --store DIR or RLBOX_STORE"
    )
    for action in (
        lambda: store.open_or_create_partial_unless_locked(FILE.sha256),
        lambda: record_fetched_lock(store, "t", tmp_path),
    ):
        with pytest.raises(MachineError) as caught:
            action()
        assert str(caught.value) == text


def test_every_flipped_byte_is_found(store: ObjectStore) -> None:
    digests = [put(store, bytes([n]) * 100) for n in range(20)]
    assert find_damaged_digests(store) == []
    for digest in digests:
        flip(store.path(digest))
        os.utime(store.path(digest), ns=(315_532_800 * 10**9,) * 2)  # even where the stamp is forged
        assert find_damaged_digests(store) == [digest]
        store.remove(digest)


def write_lock(path: Path, *files: Artifact) -> None:
    http = tuple(HttpFile(name=f.name, url=f"http://h/{f.file}", sha256=f.sha256, size=f.size) for f in files)
    head = {"target": "mine", "spec": "", "python": "3.11", "platform": "linux", "base": "debian:bookworm"}
    lock = Lock(**head, runtime=LockedPackageGroup(name="runtime", packages=()), groups=(), http=http)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lock.to_json_text())


@pytest.fixture
def target(folder: Folder) -> Folder:
    folder.target("mine", TARGET.replace('"tools"', '"engine"'))
    write_lock(folder.path / "images/mine/lock.json")
    return folder


def test_what_is_wanted(store: ObjectStore, target: Folder, tmp_path: Path) -> None:
    own, elsewhere = target.project.own_or_shipped_lock_file("mine"), tmp_path / "other/lock.json"
    other = artifact_of(b"other", "other-1.whl")
    record_fetched_lock(store, "mine", own)
    record_fetched_lock(store, "mine", elsewhere)
    assert [known.target for known in list_fetched_locks(store)] == ["mine", "mine"]
    assert other.sha256 not in collect_digests_used_by_any_project(store, target.project)
    write_lock(elsewhere, other)
    assert map_sha256_to_recorded_file(store)[other.sha256].targets == ("mine",)
    assert other.sha256 in collect_digests_used_by_any_project(store, target.project)
    elsewhere.write_text("{")
    with pytest.raises(SpecError, match="not a lock file"):
        collect_digests_used_by_any_project(store, target.project)
    assert map_sha256_to_recorded_file(store) == {}


def test_unused_objects(store: ObjectStore, target: Folder, tmp_path: Path) -> None:
    keep, drop, linked = put(store, b"keep"), put(store, b"drop!"), put(store, b"linked")
    store.link_object_replacing_path(linked, tmp_path / "linked")
    write_lock(tmp_path / "lock.json", artifact_of(b"keep", "keep.whl"))
    record_fetched_lock(store, "kept", tmp_path / "lock.json")
    record_fetched_lock(store, "gone", tmp_path / "no/lock.json")
    with store.wait_for_partial("a" * 64) as draft:
        draft.write(b"half")
    with store.wait_for_partial("c" * 64) as busy:
        busy.write(b"half")
        unused = find_unused_objects_and_partials(store, target.project)
        assert {path.name: size for path, size in unused.items()} == {drop: 5, linked: 0, "a" * 64: 4}
        remove_objects_and_records_of_gone_lock_files(store, unused)
        assert [path.name for path in store.list_partials()] == ["c" * 64]
    assert list(store.list_digests()) == [keep]
    assert [known.target for known in list_fetched_locks(store)] == ["kept"]
    assert (tmp_path / "linked").read_bytes() == b"linked"


def test_find_objects_unused_by_any_project_file_gone_meanwhile_leaves_it_out(
    store: ObjectStore, target: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = store.root / "partial/.linked"  # what another rlbox is about to rename
    link.parent.mkdir(parents=True)
    link.symlink_to("elsewhere")
    monkeypatch.setattr(store, "list_partials", lambda: [link, link.with_name("b" * 64)])
    monkeypatch.setattr(store, "list_digests", lambda: ["d" * 64])
    assert find_unused_objects_and_partials(store, target.project) == {}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    if os.geteuid():
        pytest.fail("a small file system can be mounted by root only")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.allow("sockets", "processes")
def test_a_disk_without_room(small_disk: Path) -> None:
    """Nothing is asked for when the sum of what is missing does not fit."""
    data = [bytes([n]) * 700_000 for n in range(2)]
    wanted = [artifact_of(one, f"p{n}.whl") for n, one in enumerate(data)]
    with serving({file.file: one for file, one in zip(wanted, data, strict=True)}) as mirror:
        with pytest.raises(MachineError) as caught:
            fetch_missing_artifacts(wanted, FakeLocator(a=mirror.url), ObjectStore(small_disk / "s"))
        assert str(caught.value) == (
            f"the store's disk is full: 1.4 MB needed, 1.0 MB free\n  where: {small_disk}/s\n"
            "  next:  rlbox prune, or name a folder on another disk with RLBOX_STORE"
        )
        assert mirror.asked == []


@pytest.mark.allow("sockets", "processes")
def test_a_disk_that_fills_up_meanwhile(small_disk: Path) -> None:
    data = bytes(900_000)
    wanted = artifact_of(data, "p.whl")
    store = ObjectStore(small_disk / "s")
    with serving({wanted.file: data}) as mirror:
        mirror.answers[wanted.file] = lambda request: (
            (small_disk / "hog").write_bytes(bytes(400_000)),
            request.send(),
        )[1]
        with pytest.raises(MachineError, match="the store's disk is full: "):
            fetch_missing_artifacts([wanted], FakeLocator(a=mirror.url), store)
        assert not store.has(wanted.sha256)
        (small_disk / "hog").unlink()
        mirror.answers.clear()
        fetch_missing_artifacts([wanted], FakeLocator(a=mirror.url), store)
    assert store.path(wanted.sha256).read_bytes() == data
    assert mirror.asked[-1][1].startswith("bytes=")


PROGRAM = """
import sys
sys.path[:0] = sys.argv[4:]
from mirror import FakeLocator, artifact_of
from rlbox.artifacts.fetch import fetch_missing_artifacts
from rlbox.artifacts.object_store import ObjectStore
from pathlib import Path
files = [artifact_of(bytes([n]) * int(sys.argv[3]), f"p{n}.whl") for n in range(6)]
report = fetch_missing_artifacts(files, FakeLocator(a=sys.argv[2]), ObjectStore(Path(sys.argv[1])), jobs=3)
print(report.fetched)
"""
SIZE = 200_000


def start(store: ObjectStore, url: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", PROGRAM, str(store.root), url, str(SIZE), str(CHECKOUT / "tests"), str(CHECKOUT)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


@pytest.mark.allow("sockets", "processes")
def test_killed_and_started_again(store: ObjectStore) -> None:
    """What is under its name is always right, and what is half written is of use."""
    data = {f"p{n}.whl": bytes([n]) * SIZE for n in range(6)}
    with serving(data) as mirror:
        mirror.block, mirror.pause_s = 8192, 0.01
        for turn in range(4):
            with start(store, mirror.url) as process:
                asked = len(mirror.asked)
                while len(mirror.asked) == asked and process.poll() is None:
                    time.sleep(0.002)
                time.sleep(0.03 * turn)
                process.kill()
            assert find_damaged_digests(store) == []
        mirror.pause_s = 0
        with start(store, mirror.url) as process:
            assert process.wait(30) == 0
        assert any(asked for _, asked in mirror.asked), "nothing was resumed"
    assert find_damaged_digests(store) == []
    assert sorted(store.path(digest).read_bytes()[0] for digest in store.list_digests()) == list(range(6))
    assert list(store.list_partials()) == []


@pytest.mark.allow("sockets", "processes")
def test_two_fetches_at_once(store: ObjectStore) -> None:
    """Each file is fetched by one of them, once."""
    data = {f"p{n}.whl": bytes([n]) * SIZE for n in range(6)}
    with serving(data) as mirror:
        mirror.block, mirror.pause_s = 16384, 0.01
        with start(store, mirror.url) as one, start(store, mirror.url) as two:
            counts = [int(process.communicate(timeout=60)[0]) for process in (one, two)]
        assert mirror.times() == dict.fromkeys(data, 1)
    assert sum(counts) == 6
    assert find_damaged_digests(store) == []
    assert len(list(store.list_digests())) == 6
