"""Runs at both places, with something killed, closed, removed or filled at a random moment of each.

After every round the record must be true, nothing of the run may be left, and bystanders must live. A few rounds by
default; `make nightly ARGS=chaos/runs` for more. RLBOX_CHAOS_SEED repeats one: round N of seed S is the same fault
at the same moment after the start, whatever came before it.
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
from collections.abc import Iterator
from dataclasses import dataclass
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
    own_engine,
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
FIRST = int(os.environ.get("RLBOX_CHAOS_FIRST", "1"))
PLACES = os.environ.get("RLBOX_CHAOS_PLACES", "here").split(",")
SAMPLE = 6
KILLED = (-signal.SIGKILL, -signal.SIGHUP)
EARLY = 0.25
"""Part of the rounds whose fault comes before the run is made."""
RAY_IMAGE = own("local")


@dataclass(frozen=True, kw_only=True)
class Usual:
    """How long it takes until a run is made, and then until it has ended."""

    start_s: float
    run_s: float


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
        place = Place(name="docker", target="tiny", argv=argv, cwd=folder.path, env={**env, **own_engine()}, data=data)
        for words in (("lock", "tiny"), ("build", "tiny")):
            done = subprocess.run(place.command(*words), cwd=place.cwd, env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        if own_engine():
            image = tmp_path / "tiny.tar"
            assert docker("save", "--output", str(image), own("tiny"), env={}).returncode == 0
            assert docker("load", "--input", str(image)).returncode == 0
        made["docker"] = place
    return made


@contextlib.contextmanager
def bystander_containers() -> Iterator[dict[str, str]]:
    """Foreign containers of the machine's engine: one that sleeps, and a Ray cluster where its image is there.

    Yields each id with when it started.
    """
    if "docker" not in PLACES:
        yield {}
        return
    words = ["run", "--detach", "--network=none", own("tiny"), "sleep", "100000"]
    started = [docker(*words, env={}).stdout.strip()]
    try:
        if docker("image", "inspect", RAY_IMAGE, env={}).returncode == 0:
            head = "ray start --head --block --disable-usage-stats --num-cpus=1 --object-store-memory=80000000"
            done = docker("run", "--detach", "--network=none", "--shm-size=256m", RAY_IMAGE, *head.split(), env={})
            started.append(done.stdout.strip())
            until = time.monotonic() + PATIENCE_S
            while "raylet" not in docker("top", started[-1], env={}).stdout:
                assert time.monotonic() < until, docker("logs", started[-1], env={}).stderr
                time.sleep(0.5)
            time.sleep(10)  # its other parts
        yield {name: life(name) for name in started}
    finally:
        docker("rm", "--force", *started, env={})


def life(container: str) -> str:
    """Return when a container started, and the ids of its main processes."""
    words = "inspect", "--format={{.State.Running}} {{.State.StartedAt}} {{.RestartCount}}", container
    since = docker(*words, env={}).stdout
    table = docker("top", container, "-eo", "pid,comm", env={}).stdout.splitlines()[1:]
    steady = sorted(line.split()[0] for line in table if line.split()[1] in ("sleep", "raylet", "gcs_server"))
    return f"{since.strip()} {' '.join(steady)}"


def test_whatever_dies_the_record_is_true(places: dict[str, Place], tmp_path: Path) -> None:
    print(f"RLBOX_CHAOS_SEED={SEED} RLBOX_CHAOS_ROUNDS={ROUNDS} RLBOX_CHAOS_PLACES={','.join(PLACES)}", flush=True)
    seen: collections.Counter[str] = collections.Counter()
    usual: dict[str, Usual] = {}
    with stand_in_ray() as ray, bystander_containers() as foreign:
        for number in range(FIRST, FIRST + ROUNDS):
            chance = random.Random(f"{SEED}-{number}")
            fault, place = pick(chance, places)
            early, moment = chance.random() < EARLY, chance.random()
            if place.name not in usual and ROUNDS > SAMPLE:
                usual[place.name] = play(0, place, "nothing", 0.0, False, tmp_path)[2]
            begun = time.monotonic()
            known = usual.get(place.name, Usual(start_s=1.0, run_s=2.0))
            after_s = moment * (known.start_s if early else known.run_s)
            state, hit, _ = play(number, place, fault, after_s, early, tmp_path)
            seen[f"{place.name}: {fault}: {state}"] += 1
            when = f"{moment:.2f} of {'start' if early else 'run'}"
            print(f"{number:4d} {place.name:6s} {fault:32s} {when:13s} {'hit' if hit else '-':3s} {state}", flush=True)
            assert {pid: now for pid, now in session_of(min(ray)).items() if pid in ray} == ray, f"round {number}"
            assert {name: life(name) for name in foreign} == foreign, f"round {number}"
            assert time.monotonic() - begun < 2 * PATIENCE_S
    for key, count in sorted(seen.items()):
        print(f"{count:4d} x {key}")


def play(number: int, place: Place, fault: str, after_s: float, early: bool, tmp_path: Path) -> tuple[str, bool, Usual]:
    """Play one round; return the state that was recorded, whether the fault met a run, and how long all took.

    Parameters
    ----------
    after_s, early
        When the fault comes: seconds after the command line was typed (`early`), or after the run was made.
    """
    with contextlib.ExitStack() as stack:
        data = place.data
        if fault == "full disk":
            data = stack.enter_context(small_disk(tmp_path / f"small-{number}"))
        before = frozenset(path.name for path in (data / "runs").glob("*"))
        log = tmp_path / f"round-{number}.log"
        begun = time.monotonic()
        terminal = Terminal(place, place.run_words(data), log)
        stack.callback(terminal.close)
        round = Round(
            number=number,
            place=place,
            data=data,
            fault=fault,
            after_s=after_s,
            terminal=terminal,
            before=before,
        )
        while not (early or round.over() or round.run_dir()):
            time.sleep(0.005)
        made = time.monotonic()
        while time.monotonic() - made < after_s and not round.over():
            time.sleep(0.005)
        hit = FAULTS[fault][0](round)
        wait_until_over(round, log)
        took = Usual(start_s=made - begun, run_s=time.monotonic() - made)
        (data / "filler").unlink(missing_ok=True)
        state = check(round, hit, log)
        if run_dir := round.run_dir():
            shutil.rmtree(run_dir)
        return state, hit, took


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
