"""`rlbox fetch` killed without warning at random moments, ten times over; then run to its end.

`RLBOX_CHAOS_SEED` repeats a campaign, `RLBOX_CHAOS_CAMPAIGNS` says how many there are.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes import CHECKOUT, Folder
from mirror import Mirror, serving

from rlbox.app import own_requirements
from rlbox.artifacts.object_store import ObjectStore
from rlbox.artifacts.store_upkeep import verify_objects
from rlbox.target.lock import HttpFile, Lock, LockedGroup, compute_spec_checksum
from rlbox.target.target import load_target

SEED = int(os.environ.get("RLBOX_CHAOS_SEED") or time.time())
CAMPAIGNS = int(os.environ.get("RLBOX_CHAOS_CAMPAIGNS") or 3)
KILLS = 10
SPEC = """
title = "killed"
[base]
bootstrap = "debian:bookworm"
[[stack]]
name = "engine"
packages = ["six==1.16.0"]
"""


def random_files(chance: random.Random) -> dict[str, bytes]:
    return {f"n{n}.bin": chance.randbytes(chance.choice([1, 999, 60_000, 400_000, 1_500_000])) for n in range(8)}


def write_target(folder: Folder, mirror: Mirror) -> None:
    import hashlib

    folder.target("mine", SPEC)
    target = load_target(folder.project, "mine").target
    files = tuple(
        HttpFile(name=name, url=f"{mirror.url}/{name}", sha256=hashlib.sha256(data).hexdigest(), size=len(data))
        for name, data in mirror.files.items()
    )
    lock = Lock(
        target="mine",
        spec=compute_spec_checksum(target, own_requirements()),
        python=target.python.version,
        platform=target.python.platform,
        base=target.base.bootstrap,
        runtime=LockedGroup(name="runtime", packages=()),
        groups=(LockedGroup(name="engine", packages=()),),
        http=files,
    )
    folder.write("images/mine/lock.json", lock.text())


def start(folder: Folder, store: ObjectStore, home: Path) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "rlbox", "fetch", "mine", "--store", str(store.root), "-q"]
    env = {**os.environ, "XDG_CACHE_HOME": str(home), "PYTHONPATH": str(CHECKOUT)}
    return subprocess.Popen(argv, cwd=folder.path, env=env, stdout=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.parametrize("campaign", range(CAMPAIGNS))
@pytest.mark.parametrize("at_once", [1, 2])
def test_killed_ten_times_over(folder: Folder, tmp_path: Path, campaign: int, at_once: int) -> None:
    """Never a wrong object under a name, whatever died when; with two fetches at once as well."""
    chance = random.Random(SEED + campaign)
    print(f"RLBOX_CHAOS_SEED={SEED}, campaign {campaign}")
    store = ObjectStore(tmp_path / "store")
    kept: set[str] = set()
    with serving(random_files(chance)) as mirror:
        write_target(folder, mirror)
        mirror.block, mirror.pause_s = 16_384, 0.02
        for _ in range(KILLS):
            running = [start(folder, store, tmp_path) for _ in range(at_once)]
            seen = len(mirror.asked)
            while len(mirror.asked) == seen and any(process.poll() is None for process in running):
                time.sleep(0.005)
            for process in running:
                time.sleep(chance.uniform(0, 0.25))
                process.kill()
                process.wait()
            assert verify_objects(store) == ()
            assert kept <= set(store.list_digests())
            kept = set(store.list_digests())
        resumed = [row for row in mirror.asked if row[1]]
        print(f"{len(kept)} of 8 files after {KILLS} kills, {len(resumed)} requests went on from a partial file")
        mirror.pause_s = 0
        assert [process.wait(120) for process in [start(folder, store, tmp_path) for _ in range(at_once)]] == [
            0
        ] * at_once
        assert {store.path(digest).read_bytes() for digest in store.list_digests()} == set(mirror.files.values())
    assert verify_objects(store) == ()
    assert list(store.list_partials()) == []
