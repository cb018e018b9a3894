"""Goals 11 to 15 and 17: what is built, downloaded and stored again when one thing of an image changes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.buildcache import drop_superseded
from benchmarks.pairs import Sample, Unusable
from benchmarks.place import Place
from benchmarks.stack import Built, Flake, Stack, Wish
from benchmarks.wheels import BOTTOM, LEAF, Moving

TRIES = 3
FIXES = 3
PROBE_BYTES = 1 << 17  # a mirror is tried now and then, with the beginning of a small file


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change, built by rlbox and by the naive Dockerfile; `wheel_bytes` is the size of the wheel that changed."""

    ours: Built
    naive: Built
    wheel_bytes: int


class Changes:
    """Both images as they are now, and what was changed so far."""

    def __init__(self, place: Place) -> None:
        self.stack = place.kept.get(Stack)
        self.versions: dict[str, str] = {}
        self.fix = 0
        self.made: dict[Moving, list[Change]] = {LEAF: [], BOTTOM: []}

    def wish(self) -> Wish:
        """Return what the image is made of now."""
        return Wish(versions=dict(self.versions), fix=self.fix)

    def move(self, moving: Moving) -> Change:
        """Give a package its next version and build both images."""
        change = repeated(lambda: self._move(moving))
        self.made[moving].append(change)
        return change

    def fresh(self, moving: Moving) -> list[Change]:
        """Return the changes to a version that was never built before; at least one."""
        return (self.made[moving] or [self.move(moving)])[: len(moving.versions) - 1]

    def _move(self, moving: Moving) -> Change:
        self.next_version(moving)
        ours = self.stack.ours(self.wish())
        self.stack.must_have_run(moving.group)
        size = self.stack.wheel_bytes(moving.name, self.versions[moving.name])
        return Change(ours=ours, naive=self.stack.naive(self.wish()), wheel_bytes=size)

    def next_version(self, moving: Moving) -> None:
        """Wish for the package's next version; after the last comes the first."""
        now = self.versions.get(moving.name, moving.first)
        self.versions[moving.name] = moving.versions[(moving.versions.index(now) + 1) % len(moving.versions)]


def repeated(build: Callable[[], Change]) -> Change:
    """Return what `build` returns; it is called again, for another change, when the engine broke the build."""
    for _ in range(TRIES - 1):
        try:
            return build()
        except Flake:
            continue
    return build()


def leaf_time(place: Place) -> Sample:
    """Wall time of a build after one package of the top group got another version."""
    changes = place.kept.get(Changes)
    made = [changes.move(LEAF) for _ in range(place.rounds)]
    return Sample(ours=tuple(one.ours.seconds for one in made), anchor=tuple(one.naive.seconds for one in made))


def leaf_download(place: Place) -> Sample:
    """What rlbox downloaded then, index pages included, against the one wheel."""
    made = place.kept.get(Changes).fresh(LEAF)
    return _bytes([(one.ours.sent.total, one.wheel_bytes) for one in made])


def new_bytes(moving: Moving) -> Callable[[Place], Sample]:
    """Return the measurement of the bytes of new layers after a package got another version."""

    def measure(place: Place) -> Sample:
        made = place.kept.get(Changes).fresh(moving)
        return _bytes([(one.ours.new_bytes, one.naive.new_bytes) for one in made])

    return measure


def fix_time(place: Place) -> Sample:
    """Wall time after one ENV line changed, which must move no layer; naive Dockerfiles have ENV on top."""
    changes = place.kept.get(Changes)
    ours, naive = [], []
    for _ in range(place.rounds):
        ours.append(statistics.median(_fixed(changes) for _ in range(place.pick(FIXES, 1))))
        naive.append(changes.stack.naive(changes.wish()).seconds)
    return Sample(ours=tuple(ours), anchor=tuple(naive))


def _fixed(changes: Changes) -> float:
    changes.fix += 1
    built = changes.stack.ours(changes.wish())
    if built.new_bytes or built.sent.wheel_bytes > PROBE_BYTES:
        raise Unusable(f"an ENV line moved {built.new_bytes} bytes of layers, {built.sent.wheel_bytes} of wheels")
    return built.seconds


def equal_content(place: Place) -> Sample:
    """Bytes of new layers after a group was installed anew with the packages that it had before."""
    changes = place.kept.get(Changes)
    before, now = changes.stack.registry.layers("ours"), changes.wish()
    changes.next_version(BOTTOM)
    changes.stack.ours(changes.wish())
    drop_superseded(changes.stack.mark)
    changes.versions = dict(now.versions)
    again = changes.stack.ours(now)
    changes.stack.must_have_run(BOTTOM.group)
    new = sum(size for digest, size in again.layers.items() if digest not in before)
    return _bytes([(new, changes.stack.cold.new_bytes)])


def _bytes(pairs: list[tuple[int, int]]) -> Sample:
    ours, anchor = zip(*pairs, strict=True)
    return Sample(ours=tuple(map(float, ours)), anchor=tuple(map(float, anchor)), unit="B")
