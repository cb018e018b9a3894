"""Fetching from mirrors that misbehave: what is kept, where the bytes come from in the end, what is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mirror import Answer, FakeLocator, Mirror, Request, artifact_of, serving

from rlbox.artifacts.fetch import FetchStats, fetch_missing_artifacts
from rlbox.artifacts.object_store import ObjectStore
from rlbox.errors import WorkFailed
from rlbox.system.progress import ProgressItem
from rlbox.target.artifact import Artifact

pytestmark = pytest.mark.allow("sockets")

DATA = bytes(range(256)) * 4096
LIE = b"x" * len(DATA)
FILE = artifact_of(DATA, "six-1.16.0.whl")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.artifacts.download.compute_exponential_backoff_s", lambda attempt, retry_after="": 0.01)


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with serving({FILE.file: DATA}) as made:
        yield made


@pytest.fixture
def other() -> Iterator[Mirror]:
    with serving({FILE.file: DATA}) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path / "store")


def fetch(store: ObjectStore, *files: Artifact, stall_s: float = 0.3, **bases: str) -> FetchStats:
    return fetch_missing_artifacts(files or (FILE,), FakeLocator(**bases), store, target="mine", stall_s=stall_s)


def holds(store: ObjectStore) -> bool:
    return store.path(FILE.sha256).read_bytes() == DATA and list(store.list_partials()) == []


def cut_at(*sizes: int) -> Answer:
    """Send up to a size and hang up, once for each of `sizes`; then the whole."""
    left = list(sizes)

    def answer(request: Request) -> None:
        if left:
            request.send(upto=left.pop(0))
            request.close_connection = True
        else:
            request.send()

    return answer


def stall(request: Request) -> None:
    request.send(upto=1000)
    request.server.ended.wait(5)


def refuse(*statuses: int) -> Answer:
    left = list(statuses)
    return lambda request: request.refuse(left.pop(0)) if left else request.send()


def other_bytes(data: bytes) -> Answer:
    def answer(request: Request) -> None:
        request.server.files["other"] = data
        request.path = "/other"
        request.send()

    return answer


def test_a_good_mirror(store: ObjectStore, mirror: Mirror) -> None:
    report = fetch(store, a=mirror.url)
    assert holds(store)
    assert (report.fetched, report.fetched_bytes, report.present) == (1, len(DATA), 0)
    assert report.by_mirror == {"a": len(DATA)}
    assert f"{store.path(FILE.sha256).stat().st_mode:o}" == "100444"
    again = fetch(store, a=mirror.url)
    assert (again.fetched, again.present, again.present_bytes, again.by_mirror) == (0, 1, len(DATA), {})
    assert mirror.asked == [(FILE.file, "")]


BAD: dict[str, tuple[Answer, str]] = {
    "wrong bytes": (
        other_bytes(LIE),
        f"wrong bytes: sha256 {artifact_of(LIE).sha256[:12]}…, locked is {FILE.sha256[:12]}…",
    ),
    "another size": (other_bytes(b"x"), f"offers 1 bytes, the lock says {len(DATA)}"),
    "a page": (Request.page, "answered with a web page instead of the file"),
    "stall": (stall, "stalls: nothing came for too long"),
    "not there": (refuse(404, 404, 404), "answered 404"),
    "forbidden": (refuse(403, 403, 403), "answered 403"),
    "down": (refuse(503, 503, 503, 503), "answered 503"),
    "cut again and again": (cut_at(*[0] * 9), "cut"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_mirror_is_passed_over(store: ObjectStore, mirror: Mirror, other: Mirror, case: str) -> None:
    mirror.answers[FILE.file] = BAD[case][0]
    report = fetch(store, bad=mirror.url, good=other.url)
    assert holds(store)
    assert report.by_mirror["good"] > 0
    assert mirror.times()[FILE.file] >= 1


@pytest.mark.parametrize("case", ["wrong bytes", "another size", "a page", "stall", "forbidden", "down"])
def test_a_bad_mirror_alone(store: ObjectStore, mirror: Mirror, case: str) -> None:
    answer, why = BAD[case]
    mirror.answers[FILE.file] = answer
    if case == "down":
        mirror.answers[FILE.file] = refuse(*[503] * 9)
    with pytest.raises(WorkFailed) as caught:
        fetch(store, bad=mirror.url)
    assert str(caught.value) == (
        f"1 file cannot be fetched\n  six-1.16.0.whl\n    bad: {why}\n"
        "  next:  check the network, then continue with: rlbox fetch mine"
    )
    assert list(store.list_digests()) == []
    assert len(list(store.list_partials())) == (case == "stall")


def test_what_a_bad_mirror_left_does_not_spoil_the_rest(store: ObjectStore, mirror: Mirror, other: Mirror) -> None:
    """A liar that is cut midway: its bytes are taken for good until the sum is wrong, then all comes anew."""

    def half(request: Request) -> None:
        request.server.files["other"] = LIE
        request.path = "/other"
        request.send(upto=len(DATA) // 2)
        request.close_connection = True

    mirror.answers[FILE.file] = half
    fetch(store, bad=mirror.url, good=other.url)
    assert holds(store)
    assert [name for name, _ in other.asked] == [FILE.file, FILE.file]
    assert [bool(ranged) for _, ranged in other.asked] == [True, False]


def test_a_cut_stream_goes_on_by_range(store: ObjectStore, mirror: Mirror) -> None:
    mirror.answers[FILE.file] = cut_at(300_000)
    fetch(store, a=mirror.url)
    assert holds(store)
    assert mirror.asked == [(FILE.file, ""), (FILE.file, "bytes=300000-")]


def test_a_server_without_ranges(store: ObjectStore, mirror: Mirror) -> None:
    mirror.answers[FILE.file] = lambda request: request.send(ranges=False)
    with store.wait_for_partial(FILE.sha256) as draft:
        draft.write(DATA[:5000])
    fetch(store, a=mirror.url)
    assert holds(store)
    assert mirror.asked == [(FILE.file, "bytes=5000-")]


@pytest.mark.parametrize("left", [b"x" * 5000, b"x" * len(DATA), b"x" * (len(DATA) + 9), DATA[:1]], ids=len)
def test_a_partial_of_any_kind(store: ObjectStore, mirror: Mirror, left: bytes) -> None:
    with store.wait_for_partial(FILE.sha256) as draft:
        draft.write(left)
    fetch(store, a=mirror.url)
    assert holds(store)


def test_a_whole_partial_needs_no_network(store: ObjectStore) -> None:
    with store.wait_for_partial(FILE.sha256) as draft:
        draft.write(DATA)
    fetch(store, a="http://127.0.0.1:9")
    assert holds(store)


def test_a_passing_failure(store: ObjectStore, mirror: Mirror) -> None:
    mirror.answers[FILE.file] = refuse(503, 503)
    fetch(store, a=mirror.url)
    assert holds(store)
    assert mirror.times()[FILE.file] == 3


def test_a_redirect(store: ObjectStore, mirror: Mirror, other: Mirror) -> None:
    def elsewhere(request: Request) -> None:
        request.send_response(302)
        request.send_header("Location", f"{other.url}/{FILE.file}")
        request.send_header("Content-Length", "0")
        request.end_headers()

    mirror.answers[FILE.file] = elsewhere
    fetch(store, a=mirror.url)
    assert holds(store)


def test_gone_everywhere(store: ObjectStore, mirror: Mirror, other: Mirror) -> None:
    mirror.files.clear()
    other.files.clear()
    with pytest.raises(WorkFailed, match="no source offers six") as caught:
        fetch(store, a=mirror.url, b=other.url)
    assert caught.value.next_step == "rlbox lock mine --upgrade six"
    assert (mirror.times()[FILE.file], other.times()[FILE.file]) == (1, 1)


def test_no_index_answers(store: ObjectStore) -> None:
    """That is no reason to upgrade anything."""
    locator = FakeLocator()
    locator.skips = [("tuna", "no connection"), ("other", "does not list six-1.16.0.whl")]
    with pytest.raises(WorkFailed, match="    tuna: no connection") as caught:
        fetch_missing_artifacts([FILE, artifact_of(b"1", "another-1.whl")], locator, store, target="mine", jobs=1)
    assert caught.value.next_step == "check the network, then continue with: rlbox fetch mine"


def test_all_failures_are_told_together(store: ObjectStore, mirror: Mirror) -> None:
    files = [artifact_of(bytes([n]) * 10, f"p{n}-1.whl") for n in range(4)]
    mirror.files |= {files[3].file: bytes([3]) * 10}
    mirror.answers |= {files[0].file: refuse(403), files[1].file: refuse(403), files[2].file: Request.page}
    with pytest.raises(WorkFailed) as caught:
        fetch(store, *files, a=mirror.url)
    assert caught.value.what == (
        "3 files cannot be fetched\n"
        "  p0-1.whl, p1-1.whl\n    a: answered 403\n"
        "  p2-1.whl\n    a: answered with a web page instead of the file"
    )
    assert list(store.list_digests()) == [files[3].sha256]


def test_a_local_wheel(store: ObjectStore, tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    (folder / FILE.file).write_bytes(DATA)
    report = fetch(store, local=f"file://{tmp_path}/with%20space")
    assert holds(store)
    assert report.by_mirror == {"local": len(DATA)}
    assert f"{(folder / FILE.file).stat().st_mode:o}" != "100444"


def test_a_dead_mirror_costs_little(store: ObjectStore, other: Mirror) -> None:
    """After three silences its turn comes last, so that files come from the mirror that answers."""
    files = [artifact_of(bytes([n]) * 10, f"p{n}-1.whl") for n in range(40)]
    other.files = {file.file: bytes([n]) * 10 for n, file in enumerate(files)}
    locator = FakeLocator(dead="http://127.0.0.1:9", good=other.url)
    report = fetch_missing_artifacts(files, locator, store)
    assert (report.fetched, report.by_mirror) == (40, {"good": 400})
    assert [mirror for mirror, _ in locator.skipped_mirrors] == ["dead"]


def test_progress(store: ObjectStore, mirror: Mirror) -> None:
    seen: list[ProgressItem] = []
    fetch_missing_artifacts([FILE, FILE], FakeLocator(a=mirror.url), store, seen.append)
    assert [seen[0].mark, seen[-1].mark] == ["", "✓"]
    assert [p.done_bytes for p in seen] == sorted(p.done_bytes for p in seen)
    assert (seen[-1].key, seen[-1].done_bytes) == (FILE, len(DATA))
    assert seen[-1].status_text.endswith("  a")
