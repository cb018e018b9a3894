"""The world of the chaos rounds: places where runs happen, bystanders that must live, faults, what must hold after."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from typing import Any

from rlbox.record.disk_lock import find_lock_owner
from rlbox.record.run_store import RunStore
from rlbox.record.supervisor_file import SupervisorInfo, load_supervisor_info
from rlbox.run.backend import open_container_runtime
from rlbox.system.process_table import is_own_process_with_env, probe_process, probe_processes

PATIENCE_S = 90.0
ONLY = os.environ.get("RLBOX_CHAOS_ONLY", "")
"""Part of the names of the faults to play."""
STAGES = ("first", "second")
WORK = "for i in 1 2 3 4; do echo step $i; sleep 0.1; done; echo done > {run}/proof-STAGE"
JOB = """
title = "two short stages"
target = "TARGET"
""" + "".join(
    f"""
[[stages]]
name = "{name}"
title = "leaves a proof"
command = ["sh", "-c", "{WORK.replace("STAGE", name)}"]
limits = {{ total_s = 60, silence_s = 30 }}
[stages.gate]
require = [{{ pattern = 'step 4' }}]
files = [{{ path = "{{run}}/proof-{name}" }}]
"""
    for name in STAGES
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """How `rlbox` is typed at one place, and the data disk of the runs there."""

    name: str
    target: str
    argv: tuple[str, ...]
    cwd: Path
    env: dict[str, str]
    data: Path

    def command(self, *words: str) -> list[str]:
        return [*self.argv, *words]

    def run_words(self, data: Path) -> tuple[str, ...]:
        return ("run", "two", "--place", self.name, "--data", str(data))

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), cwd=self.cwd, env=self.env, capture_output=True, text=True, timeout=PATIENCE_S
        )


class Terminal:
    """A terminal window with one command line in it."""

    def __init__(self, place: Place, words: tuple[str, ...], log: Path) -> None:
        self.master, slave = pty.openpty()
        self._log = open(log, "wb")  # noqa: SIM115
        self.process = subprocess.Popen(
            place.command(*words),
            cwd=place.cwd,
            env={**place.env, "TERM": "dumb"},
            stdin=slave,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def type(self, keys: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self.master, keys)

    def hang_up(self) -> None:
        """Close the window."""
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def close(self) -> None:
        self.hang_up()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._log.close()


@dataclass(kw_only=True)
class Round:
    """One round: a run that was started, and what was done to it."""

    number: int
    place: Place
    data: Path
    fault: str
    after_s: float
    terminal: Terminal
    before: frozenset[str]

    def run_dir(self) -> Path | None:
        folder = self.data / "runs"
        found = [path for path in folder.glob("*") if path.name not in self.before] if folder.is_dir() else []
        return found[0] if found else None

    def supervisor(self) -> SupervisorInfo | None:
        run_dir = self.run_dir()
        return load_supervisor_info(run_dir) if run_dir else None

    def container(self) -> str:
        run_dir = self.run_dir()
        return f"rlbox-{run_dir.name}" if run_dir else ""

    def over(self) -> bool:
        return self.terminal.process.poll() is not None


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def docker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=PATIENCE_S)


def wait_for_target(round: Round, find: Callable[[], object]) -> bool:
    """Wait until what a fault is meant for is there, or the command line has ended without it."""
    until = time.monotonic() + PATIENCE_S
    while not find():
        if round.over() or time.monotonic() > until:
            return bool(find())
        time.sleep(0.01)
    return True


def kill_cli(round: Round) -> bool:
    return not round.over() and kill(round.terminal.process.pid)


def supervisor_pid(round: Round) -> int:
    """Return the id, on this host, of the supervisor while it lives; 0 when there is none."""
    facts = round.supervisor()
    if facts is None:
        return 0
    if facts.place == "here":
        now = probe_process(facts.pid)
        return facts.pid if now and now.start_ticks == facts.started and not now.is_zombie else 0
    top = docker("inspect", "--format={{.State.Pid}}", round.container()).stdout.strip()
    return int(top) if top.isdigit() else 0  # the container's process 1, which only its host can kill


def kill_supervisor(round: Round) -> bool:
    return wait_for_target(round, lambda: supervisor_pid(round)) and kill(supervisor_pid(round) or 1 << 22)


def kill_warden(round: Round) -> bool:
    wait_for_target(round, round.supervisor)
    facts = round.supervisor()
    return facts is not None and probe_process(facts.warden) is not None and kill(facts.warden)


def kill_both(round: Round) -> bool:
    if not wait_for_target(round, round.supervisor):
        return False
    facts = round.supervisor()
    if facts is None or not supervisor_pid(round):
        return False
    kill(facts.warden)
    return kill(facts.pid)


def docker_kill(round: Round) -> bool:
    wait_for_target(round, lambda: round.container() and docker("inspect", round.container()).returncode == 0)
    return docker("kill", round.container() or "none").returncode == 0


def docker_remove(round: Round) -> bool:
    wait_for_target(round, lambda: round.container() and docker("inspect", round.container()).returncode == 0)
    running = docker("inspect", "--format={{.State.Running}}", round.container() or "none").stdout.strip() == "true"
    return docker("rm", "--force", round.container() or "none").returncode == 0 and running


def hang_up(round: Round) -> bool:
    alive = not round.over()
    round.terminal.hang_up()
    return alive


def ctrl_c(round: Round) -> bool:
    alive = not round.over()
    round.terminal.type(b"\x03")
    return alive


def sigterm(round: Round) -> bool:
    alive = not round.over()
    with contextlib.suppress(ProcessLookupError):
        round.terminal.process.terminate()
    return alive


def two_stops(round: Round) -> bool:
    words = round.place.command("stop", "--data", str(round.data), "--target", round.place.target)
    stops = [
        subprocess.Popen(
            words, cwd=round.place.cwd, env=round.place.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for stop in stops:
        out, err = stop.communicate(timeout=PATIENCE_S)
        text = (out + err).decode()
        # before the first run there is none to stop
        assert stop.returncode == 0 or (stop.returncode == 2 and "no run yet" in text), text
    return True


def remove_run(round: Round) -> bool:
    wait_for_target(round, round.run_dir)
    run_dir = round.run_dir()
    if run_dir is None or round.over():
        return False
    trash = round.data / f"trash-{round.number}"
    with contextlib.suppress(OSError):
        run_dir.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)
    return True


def fill_disk(round: Round) -> bool:
    with contextlib.suppress(OSError), open(round.data / "filler", "wb") as file:
        while True:
            file.write(b"\0" * (1 << 20))
            file.flush()
    with contextlib.suppress(OSError), open(round.data / "filler", "ab", buffering=0) as file:
        while file.write(b"\0" * 512):
            pass
    return not round.over()


LOST = r"the supervisor was killed \(signal 9"
FAULTS: dict[str, tuple[Callable[[Round], bool], tuple[str, ...], str, tuple[str, ...]]] = {
    # what it does, where, how the cause of a failed run must begin, and states other than `passed` that fit it
    "kill -9 of the command line": (kill_cli, ("here", "docker"), "", ("never started",)),
    "kill -9 of the supervisor": (kill_supervisor, ("here", "docker"), LOST, ("failed",)),
    "kill -9 of the warden": (kill_warden, ("here",), "", ()),
    "kill -9 of supervisor and warden": (kill_both, ("here",), r"the supervisor ended without a record", ("failed",)),
    "docker kill": (docker_kill, ("docker",), rf"{LOST}|the engine lost", ("failed", "never started")),
    "docker rm -f": (
        docker_remove,
        ("docker",),
        r"container \S+ was removed, not by rlbox",
        ("failed", "never started"),
    ),
    "closed terminal": (hang_up, ("here", "docker"), "", ("never started",)),
    "Ctrl-C": (ctrl_c, ("here", "docker"), "", ("interrupted", "never started")),
    "SIGTERM": (sigterm, ("here", "docker"), "", ("interrupted", "never started")),
    "two stops": (two_stops, ("here", "docker"), "", ("interrupted",)),
    "run directory removed": (remove_run, ("here", "docker"), r"the run directory was removed", ("failed", "removed")),
    "full disk": (fill_disk, ("here", "docker"), ".*(disk|No space|full)", ("failed", "never started")),
}


def row_of(round: Round) -> dict[str, Any]:
    """Return what `rlbox runs` says of the round's run; it settles what is to be settled."""
    said = round.place.ask("runs", "--json", "--data", str(round.data), "--target", round.place.target)
    assert said.returncode == 0, said.stderr
    assert said.stderr == "", said.stderr
    rows = {row["run"]: row for row in json.loads(said.stdout)["runs"]}
    run_dir = round.run_dir()
    return dict(rows.get(run_dir.name, {})) if run_dir else {}


def left_of(round: Round) -> list[str]:
    """Return what is left of the round's run: processes, containers, notes, the disk's hold."""
    run_dir = round.run_dir()
    found = []
    if run_dir:
        table = probe_processes()
        mark = {"RLBOX_RUN": run_dir.name}
        found += [
            f"process {p.pid} {p.name}"
            for p in table.values()
            if not p.is_zombie and is_own_process_with_env(p.pid, mark)
        ]
        facts = load_supervisor_info(run_dir)
        if facts and facts.place == "here" and supervisor_pid(round):
            found.append(f"supervisor {facts.pid}")
    if round.place.name == "docker":
        found += docker("ps", "--all", "--filter", f"volume={round.data}", "--format={{.Names}}").stdout.split()
    found += [
        f"note of {run}"
        for run in RunStore(data_dir=round.data, open_runtime=open_container_runtime).load_container_refs_by_run()
    ]
    if holder := find_lock_owner(round.data):
        found.append(f"hold of {holder.run or holder.what}")
    return found


@contextlib.contextmanager
def stand_in_ray() -> Iterator[dict[int, int]]:
    """A process tree with Ray's names in a session of its own; yields each id with its start."""
    script = "exec -a raylet bash -c 'for i in 1 2 3; do (exec -a ray::IDLE sleep 100000) & done; wait'"
    head = subprocess.Popen(["bash", "-c", script], start_new_session=True)
    try:
        until = time.monotonic() + PATIENCE_S
        while len(tree := session_of(head.pid)) < 4:
            assert time.monotonic() < until
            time.sleep(0.01)
        yield tree
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGKILL)
        head.wait()


def session_of(pid: int) -> dict[int, int]:
    return {p.pid: p.start_ticks for p in probe_processes().values() if p.session_id == pid and not p.is_zombie}


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A data disk of 48 MiB."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def pick(chance: random.Random, places: dict[str, Place]) -> tuple[str, Place]:
    """Return a fault and a place that it fits."""
    fits = [(fault, places[name]) for fault, (_, names, _, _) in FAULTS.items() for name in names if name in places]
    return chance.choice([fit for fit in fits if ONLY in fit[0]])
