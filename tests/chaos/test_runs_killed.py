"""Runs at both places, with something killed, closed, removed or filled at a random moment of each.

After every round the record must be true, nothing of the run may be left, and bystanders must live. A few rounds by
default; `make nightly ARGS=chaos` for more. RLBOX_CHAOS_SEED repeats one: round N of seed S is the same fault at the
same moment, whatever came before it.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chaosbox import (
    FAULTS,
    JOB,
    PATIENCE_S,
    STAGES,
    Place,
    Round,
    Terminal,
    docker,
    left_of,
    pick,
    row_of,
    session_of,
    small_disk,
    stand_in_ray,
)
from enginebox import TINY
from fakes import CHECKOUT, ON_IMAGE, Folder
from launched import BARE
from projectbox import own

SEED = int(os.environ.get("RLBOX_CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
ROUNDS = int(os.environ.get("RLBOX_CHAOS_ROUNDS", "3"))
PLACES = os.environ.get("RLBOX_CHAOS_PLACES", "here").split(",")
KILLED = (-signal.SIGKILL, -signal.SIGHUP)
EARLY = 0.25
"""Part of the rounds whose fault comes before the run is made."""
LATEST_S = {True: 1.0, False: 2.0}
"""How long after the command line was typed (early), or the run was made, a fault comes at the latest."""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Place]:
    made = {}
    path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    base = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    if "here" in PLACES:
        folder = Folder(tmp_path / "here")
        folder.target("mine", ON_IMAGE)
        folder.lock("mine")
        folder.job("two", JOB.replace("TARGET", "mine"))
        data = tmp_path / "here-data"
        data.mkdir()
        argv = (sys.executable, "-c", BARE)
        made["here"] = Place(name="here", target="mine", argv=argv, cwd=folder.path, env=base, data=data)
    if "docker" in PLACES:
        folder = Folder(tmp_path / "docker")
        folder.target("tiny", TINY)
        folder.job("two", JOB.replace("TARGET", "tiny"))
        data = tmp_path / "docker-data"
        data.mkdir()
        env = {key: value for key, value in base.items() if key != "XDG_CACHE_HOME"}
        argv = (sys.executable, "-m", "rlbox")
        place = Place(name="docker", target="tiny", argv=argv, cwd=folder.path, env=env, data=data)
        for words in (("lock", "tiny"), ("build", "tiny")):
            done = subprocess.run(place.command(*words), cwd=place.cwd, env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        made["docker"] = place
    return made


@contextlib.contextmanager
def bystander_container() -> Iterator[Callable[[], str]]:
    """A container of somebody else; yields what tells whether it runs, and since when."""
    if "docker" not in PLACES:
        yield str
        return
    name = docker("run", "--detach", "--network=none", own("tiny"), "sleep", "100000").stdout.strip()
    try:
        yield lambda: docker("inspect", "--format={{.State.Running}} {{.State.StartedAt}}", name).stdout
    finally:
        docker("rm", "--force", name)


def test_whatever_dies_the_record_is_true(places: dict[str, Place], tmp_path: Path) -> None:
    print(f"RLBOX_CHAOS_SEED={SEED} RLBOX_CHAOS_ROUNDS={ROUNDS} RLBOX_CHAOS_PLACES={','.join(PLACES)}", flush=True)
    seen: collections.Counter[str] = collections.Counter()
    with stand_in_ray() as ray, bystander_container() as foreign:
        before = foreign()
        for number in range(1, ROUNDS + 1):
            chance = random.Random(f"{SEED}-{number}")
            fault, place = pick(chance, places)
            early = chance.random() < EARLY
            after_s = chance.uniform(0, LATEST_S[early])
            state, hit = play(number, place, fault, after_s, early, tmp_path)
            seen[f"{place.name}: {fault}: {state}"] += 1
            when = f"{after_s:.2f} s of {'start' if early else 'run'}"
            print(f"{number:4d} {place.name:6s} {fault:32s} {when:13s} {'hit' if hit else '-':3s} {state}", flush=True)
            assert {pid: now for pid, now in session_of(min(ray)).items() if pid in ray} == ray, f"round {number}"
            assert foreign() == before, f"round {number}"
    for key, count in sorted(seen.items()):
        print(f"{count:4d} x {key}")


def play(number: int, place: Place, fault: str, after_s: float, early: bool, tmp_path: Path) -> tuple[str, bool]:
    """Play one round; return the state that was recorded, and whether the fault met a run."""
    with contextlib.ExitStack() as stack:
        data = place.data
        if fault == "full disk":
            data = stack.enter_context(small_disk(tmp_path / f"small-{number}"))
        before = frozenset(path.name for path in (data / "runs").glob("*"))
        log = tmp_path / f"round-{number}.log"
        terminal = Terminal(place, place.run_words(data), log)
        stack.callback(terminal.close)
        round = Round(
            number=number, place=place, data=data, fault=fault, after_s=after_s, terminal=terminal, before=before
        )  # fmt: skip
        while not (early or round.over() or round.run_dir()):
            time.sleep(0.005)
        made = time.monotonic()
        while time.monotonic() - made < after_s and not round.over():
            time.sleep(0.005)
        hit = FAULTS[fault][0](round)
        wait_until_over(round, log)
        (data / "filler").unlink(missing_ok=True)
        state = check(round, hit, log)
        if run_dir := round.run_dir():
            shutil.rmtree(run_dir)
        return state, hit


def wait_until_over(round: Round, log: Path) -> None:
    """Wait for the command line to end, and for the run: nobody holds the disk, no container of it runs.

    What was asked of the engine by a command line that is dead may be carried out a moment later.
    """
    until, quiet = time.monotonic() + PATIENCE_S, 0
    while quiet < (40 if round.terminal.process.returncode in KILLED else 1):
        assert time.monotonic() < until, f"round {round.number} never ended: {left_of(round)}\n{log.read_text()}"
        quiet = 0 if not round.over() or still_there(round) else quiet + 1
        time.sleep(0.05)


def still_there(round: Round) -> bool:
    from rlbox.record.disk_lock import find_lock_owner

    if find_lock_owner(round.data):
        return True
    words = ("ps", "--filter", f"volume={round.data}", "--quiet")
    return round.place.name == "docker" and bool(docker(*words).stdout.strip())


def check(round: Round, hit: bool, log: Path) -> str:
    """Check that what is recorded is true and that nothing is left; return the recorded state."""
    row = row_of(round)
    told = f"round {round.number}, {round.place.name}, {round.fault}: {row}\n{log.read_text()}"
    assert left_of(round) == [], told
    assert "rlbox: bug" not in told, told
    run_dir = round.run_dir()
    _, _, pattern, states = FAULTS[round.fault]
    if run_dir is None or not row:
        fits = {"never started", "removed"} & set(states) or round.fault in ("two stops", "full disk")
        assert fits, told
        return "no run"
    state = row["state"]
    proofs = [name for name in STAGES if (run_dir / f"proof-{name}").exists()]
    assert state == "passed" or (hit and state in states), told
    if state == "never started":
        assert not (run_dir / "run.json").exists(), told
        assert proofs == [], told
        return state
    run = json.loads((run_dir / "run.json").read_text())
    assert run["state"] == state, told
    passed = [stage["name"] for stage in run["stages"] if stage["state"] == "passed"]
    assert (state == "passed") == (passed == list(STAGES)), told
    if round.fault != "run directory removed":
        assert set(passed) <= set(proofs), told
    if state == "failed":
        assert re.match(pattern, row["cause"], re.DOTALL), told
    if state == "interrupted":
        assert row["cause"].startswith("interrupted by "), told
    check_exit(round, run, told)
    return str(state)


def check_exit(round: Round, run: dict[str, object], told: str) -> None:
    """The command line that lived to see the end says the same as the record."""
    code = round.terminal.process.returncode
    if round.fault in ("Ctrl-C", "SIGTERM") and run["state"] == "passed":
        assert code in (0, 130, -signal.SIGTERM, -signal.SIGINT), told  # it came when the run was over
    elif code >= 0:
        assert code == run["exit_code"], told
