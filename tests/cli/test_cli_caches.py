"""`rlbox caches`: each entry is listed, and goes when it was not used for long, or by its name."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from fakes import Rlbox
from following import Follow

from rlbox.files.act.caches import KINDS
from rlbox.files.act.folders import cache_folder
from rlbox.files.act.lock import hold

OLD_S = 40 * 86_400


def keep(name: str, *, unused_s: float = 0, size: int = 8192) -> Path:
    """Write an entry of a cache that was last used so long ago."""
    path = cache_folder(*name.split("/"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    at = time.time() - unused_s
    os.utime(path, (at, at))
    return path


@pytest.fixture(autouse=True)
def _time_of_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can set when an entry itself was changed; here it was when the test says."""
    real = Path.lstat

    class Facts:
        def __init__(self, facts: os.stat_result) -> None:
            self._facts, self.st_ctime = facts, facts.st_mtime

        def __getattr__(self, name: str) -> object:
            return getattr(self._facts, name)

    monkeypatch.setattr("rlbox.files.act.caches.Path.lstat", lambda path: Facts(real(path)))


def test_they_are_listed(rlbox: Rlbox) -> None:
    assert rlbox("caches").out == f"0 B in {cache_folder()}\n"
    keep("logs/build-mine.log")
    keep("contexts/mine/base/file", unused_s=3600)
    lines = rlbox("caches", "ls", "-v").out.splitlines()
    assert lines[0].split() == ["cache", "entries", "size", "not", "used", "for", "what"]
    assert [line.split()[:2] for line in lines[1:3]] == [["contexts", "1"], ["logs", "1"]]
    assert [line.split()[0] for line in lines[3:5]] == ["contexts/mine", "logs/build-mine.log"]
    data = rlbox("caches", "--json").data
    assert [row["name"] for row in data["caches"]] == ["contexts/mine", "logs/build-mine.log"]
    assert data["bytes"] == sum(row["bytes"] for row in data["caches"]) >= 16_384


def test_what_was_not_used_for_long_goes(rlbox: Rlbox) -> None:
    old, new, store = keep("logs/old.log", unused_s=OLD_S), keep("logs/new.log"), keep("store/x", unused_s=OLD_S)
    dry = rlbox("caches", "prune", "--dry-run")
    assert dry.out.splitlines()[0] == "remove logs/old.log, 8.2 kB"
    assert dry.out.endswith("# verdict: this would remove 1 entry of caches\n")
    refused = rlbox("caches", "prune")
    assert (refused.code, "--yes to remove 1 entry of caches, 8.2 kB" in refused.err) == (2, True)
    assert old.exists()
    assert rlbox("caches", "prune", "--yes").out == "removed logs/old.log, 8.2 kB\nfreed 8.2 kB\n"
    assert [path.exists() for path in (old, new, store)] == [False, True, True]
    assert rlbox("caches", "prune", "--older", "0s", "--yes").out.startswith("removed logs/new.log")
    wrong = rlbox("caches", "prune", "--older", "soon")
    assert (wrong.code, "Invalid value for '--older'" in wrong.err) == (2, True)


@pytest.mark.parametrize("name", ["contexts/mine", "contexts"])
def test_one_goes_by_its_name(rlbox: Rlbox, name: str) -> None:
    inside, other = keep("contexts/mine/deep/file"), keep("plans/a.json")
    (inside.parent / "link").symlink_to(other)
    assert rlbox("caches", "rm", name, "--yes").out.startswith("removed contexts/mine, ")
    assert (cache_folder("contexts", "mine").exists(), other.exists()) == (False, True)
    assert [*cache_folder("contexts").iterdir()] == []


def test_a_name_that_is_not_there(follow: Follow) -> None:
    keep("plans/a.json")
    assert "plans" in follow.types(follow("caches", "rm", "nosuch", "--yes")).out


def test_nothing_goes_while_another_builds(follow: Follow) -> None:
    keep("contexts/mine/file")
    with hold(cache_folder("locks", "build-mine.lock"), "build of mine"):
        step = follow("caches", "rm", "contexts", "--yes")
        assert cache_folder("contexts", "mine").exists()
    follow.again(step)
    assert not cache_folder("contexts", "mine").exists()


def test_a_build_is_no_matter_where_nothing_is_to_go(rlbox: Rlbox) -> None:
    new = keep("contexts/mine/file")
    with hold(cache_folder("locks", "build-mine.lock"), "build of mine"):
        assert rlbox("caches", "prune", "--yes").out == "freed 0 B\n"
    assert new.exists()


def test_what_a_kill_left_of_a_removal_is_in_nobodys_way(rlbox: Rlbox) -> None:
    keep("contexts/mine/file")
    keep("contexts/.mine.1/file")
    assert rlbox("caches", "rm", "contexts", "--yes").code == 0
    assert [*cache_folder("contexts").iterdir()] == []


def test_every_cache_of_the_code_is_known() -> None:
    """What the code keeps below the cache folder is listed here, or has a verb of its own."""
    source = Path(__file__).parents[2] / "rlbox"
    named = {
        name for path in source.rglob("*.py") for name in re.findall(r'cache_folder\("(\w+)"', path.read_text("utf-8"))
    }
    assert named - {"store", "places", "locks"} == {*KINDS}
