"""Rounds of trouble on a cluster of two hosts, beside another user's with a job: what is done, and what must hold.

Each round begins and ends with a healthy cluster. Between, a job is followed on it, something happens to a host, a
container or the command line, and what is told is compared with what was done.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from clusterbox import DISK, LAB, NODES, Hosts, script
from clusterfollowed import PYTHON, Followed

THEIRS = ("pair", "--name", "theirs", "--nodes", "mira@node0,mira@node1", "--data", f"{DISK}/mira")
BEATS = """
import os, ray, time
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init(log_to_driver=False)
@ray.remote(num_cpus=0)
class One:
    def work(self, number): return number + 1
here = On(ray.get_runtime_context().get_node_id(), soft=False)
one, number, began = One.options(scheduling_strategy=here).remote(), 0, time.time()
while True:
    number = ray.get(one.work.remote(number))
    try:
        with open("/data/beat.new", "w") as file: file.write(f"{began} {number}")
        os.replace("/data/beat.new", "/data/beat") # whoever looks finds it whole
    except OSError: pass
    time.sleep(0.5)
"""
FILL = f"fallocate -l $(( $(df --output=avail -B1 {DISK} | tail -1) - 8000000 )) {DISK}/large"
OURS = "$(docker ps -q --filter label=rlbox.cluster=pair)"
LEFT = f"""
docker ps -aq --filter label=rlbox.cluster=pair | tail -n +2 | sed 's/^/container /'
pgrep -f 'rlbox-nod[e]$' | sed 's/^/program /'
ls -d /tmp/rlbox-* 2>/dev/null | sed 's/^/folder /'
find {DISK}/clusters -type f -not -path '*/ray/*' ! -name cluster.json ! -name auth_token | sed 's/^/file /'
"""
WORK_BYTES = 16_000_000
SOON_S, LATEST_S = 45.0, 180.0
"""For how long what is left may still be undone, and what a killed command line began may go on."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What is done to a node, how that is undone, what is said of it, what `status` calls it then and afterwards."""

    do: Callable[[Rounds, str], object]
    undo: Callable[[Rounds, str], object] = lambda rounds, node: None
    says: str
    id: str
    after: str = ""
    long: bool = False


@dataclass(frozen=True, kw_only=True)
class Played:
    """A round: `seconds` from the deed to the report, or, of a killed command line, until its programs there ended."""

    number: int
    deed: str
    node: str
    report: str
    seconds: float
    theirs: str
    leaks: tuple[str, ...]
    wrong: tuple[str, ...]

    @property
    def held(self) -> bool:
        return not self.wrong and not self.leaks


def _power(rounds: Rounds, node: str) -> None:
    script("up", "2")
    rounds.let_in(node)


TROUBLES: Mapping[str, Trouble] = {
    "cable": Trouble(
        do=lambda rounds, node: script("cut", node),
        undo=lambda rounds, node: script("heal", node),
        says="neither this machine nor the other nodes reach it",
        id="host-gone",
    ),
    "cable, for long": Trouble(
        do=lambda rounds, node: script("cut", node),
        undo=lambda rounds, node: script("heal", node),
        says="neither this machine nor the other nodes reach it",
        id="host-gone",
        long=True,
    ),
    "power": Trouble(
        do=lambda rounds, node: script("kill", node),
        undo=_power,
        says="neither this machine nor the other nodes reach it",
        id="host-gone",
        after="host-restarted",
    ),
    "container": Trouble(
        do=lambda rounds, node: script("exec", node, "sh", "-c", f"docker kill {OURS}"),
        says="its container was killed: exit code 137",
        id="container-killed",
    ),
    "disk": Trouble(
        do=lambda rounds, node: script("exec", node, "sh", "-c", FILL),
        undo=lambda rounds, node: script("exec", node, "sh", "-c", f"rm -f {DISK}/large"),
        says="its data disk is full",
        id="disk-full",
    ),
}
KILLED = ("submit", "up", "down")
WEIGHTS = {"cable": 4, "cable, for long": 1, "power": 4, "container": 5, "disk": 3, "submit": 2, "up": 3, "down": 2}


def drawn(seed: int, number: int) -> tuple[str, str, random.Random]:
    """Return what a round does to which node, and what else it draws from."""
    chance = random.Random(f"{seed}:{number}")
    (deed,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
    return deed, chance.choice(NODES), chance


@dataclass(kw_only=True)
class Rounds:
    """Two clusters on the hosts: `pair`, to which things happen, and `theirs` of another user, with a job."""

    hosts: Hosts
    before: dict[str, list[str]] = field(default_factory=dict)

    # ---- begin and end

    def begin(self) -> None:
        self.before = self.hosts.look()
        for node in NODES:
            self.let_in(node)
            self.hosts.on(node, f"mkdir -p {DISK}/mira && chown 2000:2000 {DISK}/mira && chmod 700 {DISK}/mira")
        self.up()
        self.their_up()
        self.their_job()

    def let_in(self, node: str) -> None:
        """Let the other user speak to the engine of a host that was started."""
        group = LAB / node / "group"
        group.write_text(group.read_text().replace("docker:x:2001:\n", "docker:x:2001:mira\n"))
        script("exec", node, "sh", "-c", "chgrp 2001 /var/run/docker.sock && chmod 660 /var/run/docker.sock")

    def end(self) -> dict[str, list[str]]:
        """Take both clusters down; return what is left on the hosts, and what is gone."""
        for words in (("pair",), THEIRS):
            done = self.hosts("cluster", "down", *words, "--force")
            assert done.code == 0, done.err
        for node in NODES:
            self.hosts.on(node, f"rm -rf {DISK}/mira")
        after = self.hosts.look()
        return {host: sorted({*after[host]} ^ {*self.before[host]}) for host in self.before}

    def up(self) -> None:
        """Have the cluster healthy."""
        done = self.hosts("cluster", "up", "pair", "--json")
        assert done.code == 0, f"up: {done.err.strip()}"
        assert done.data["healthy"], f"up: {done.out}"

    # ---- the other user

    def their_up(self) -> None:
        done = self.hosts("cluster", "up", *THEIRS, "--json")
        assert done.code == 0, f"theirs: {done.err.strip()}"

    def their_job(self) -> None:
        """Begin their job, and wait until it beats; one that was lost may have left its last beat."""
        was = self.beat()
        done = self.hosts("cluster", "submit", *THEIRS, "--detach", "--", PYTHON, "-c", BEATS)
        assert done.code == 0, f"theirs: {done.err.strip()}"
        end = time.monotonic() + 120
        while self.beat()[0] in ("", was[0]):
            assert time.monotonic() < end, "theirs: its job does not begin"
            time.sleep(0.5)

    def beat(self) -> tuple[str, int]:
        """Return when their job began, and how far it is; nothing where it writes nothing."""
        began, _, number = self.hosts.on("node0", f"cat {DISK}/mira/beat 2>/dev/null || true").partition(" ")
        return (began, int(number)) if number else ("", 0)

    def keeps(self, was: tuple[str, int]) -> bool:
        """Whether it is the same job still, and goes on."""
        end, first = time.monotonic() + SOON_S, 0
        while time.monotonic() < end:
            began, number = self.beat()
            if began == was[0] and number > first > 0:
                return True
            first = first or (number if began == was[0] else 0)
            time.sleep(0.5)
        return False

    # ---- rounds

    def play(self, seed: int, number: int) -> Played:
        """Play a round; whatever was wrong is told in it, and the next begins with a healthy cluster all the same."""
        deed, node, chance = drawn(seed, number)
        self.up()
        beat, wrong = self.beat(), list[str]()
        report, seconds = "", 0.0
        with self._told(wrong):
            if deed in TROUBLES:
                report, seconds = self._trouble(TROUBLES[deed], node, wrong)
            else:
                report, seconds = self._kill(deed, chance, wrong)
        with self._told(wrong):
            self.up()
        return Played(
            number=number,
            deed=f"kill -9 of {deed}" if deed in KILLED else deed,
            node="" if deed in KILLED else node,
            report=report,
            seconds=round(seconds, 1),
            theirs=self._theirs(deed, node, beat, wrong),
            leaks=self._leaks(),
            wrong=tuple(wrong),
        )

    @contextmanager
    def _told(self, wrong: list[str]) -> Iterator[None]:
        try:
            yield
        except (AssertionError, subprocess.SubprocessError) as error:
            wrong.append(" ".join(str(error).split())[:300])

    def _trouble(self, trouble: Trouble, node: str, wrong: list[str]) -> tuple[str, float]:
        job = Followed(self.hosts).ready()
        began = time.monotonic()
        try:
            trouble.do(self, node)
            at, line = job.until(f"{node}: {trouble.says}")
            if not line:
                wrong.append(f"no report: {job.text[-200:]}")
            self._first(node, trouble.id, wrong)
            if trouble.long:
                time.sleep(max(0.0, 75 - (time.monotonic() - began)))
        finally:
            trouble.undo(self, node)
            job.end()
        if trouble.after:
            self._first(node, trouble.after, wrong)
        self.hosts("cluster", "stop", "pair", job.job())
        return line, at - began

    def _first(self, node: str, id_: str, wrong: list[str]) -> None:
        """Look that `status` names a node, and what happened to it, before all others."""
        said = self.hosts("cluster", "status", "pair", "--json")
        rows = [(row["where"], row["id"]) for row in json.loads(said.out)["failures"]] if said.out else []
        if rows[:1] != [(node, id_)]:
            wrong.append(f"status says {rows}, not {node} {id_} {said.err.strip()}")

    def _kill(self, verb: str, chance: random.Random, wrong: list[str]) -> tuple[str, float]:
        after = chance.uniform(0.3, {"up": 12.0, "down": 5.0, "submit": 9.0}[verb])
        if verb == "submit":
            job = self._submit(chance)
            one = job.process
        else:
            job = Followed(self.hosts).ready()
            if verb == "up":
                script("exec", chance.choice(NODES), "sh", "-c", f"docker kill {OURS}")
            job.end()
            words = {"up": ("up", "pair"), "down": ("down", "pair", "--force")}[verb]
            argv = self.hosts.argv("cluster", *words)
            one = subprocess.Popen(argv, cwd=self.hosts.project, env=self.hosts.env(), stdout=-1, stderr=-1)
        time.sleep(after)
        one.kill()
        one.wait()
        began = time.monotonic()
        while programs := [row for row in self._left() if "program" in row]:
            if time.monotonic() - began > LATEST_S:
                wrong.append(f"it goes on there: {programs}")
                break
            time.sleep(0.2)
        seconds = time.monotonic() - began
        self.up()
        said = self._look_for(job, wrong) if verb == "submit" else "a healthy cluster"
        return f"killed after {after:.1f} s; {said}", seconds

    def _submit(self, chance: random.Random) -> Followed:
        """Begin to submit a job, with what takes its time: a directory that is sent, and a secret."""
        folder = self.hosts.project / "work"
        folder.mkdir(exist_ok=True)
        (folder / "data").write_bytes(chance.randbytes(WORK_BYTES))
        return Followed(self.hosts, "--working-dir", str(folder), "--secret", "DEEP_KEY", DEEP_KEY="q7Zp2vXk91mTb4")

    def _look_for(self, job: Followed, wrong: list[str]) -> str:
        """Look that a job that was told goes on without its command line, and that one that was not is stopped."""
        if id_ := job.job():
            end = time.monotonic() + SOON_S
            while "ready" not in (logs := self.hosts("cluster", "logs", "pair", "--job", id_)).out:
                if time.monotonic() > end:
                    wrong.append(f"its job does not go on: {logs.out[-200:]} {logs.err.strip()}")
                    break
        known = self.hosts("cluster", "stop", "pair", "job-none").err
        for last in re.findall(r"\bjob-[0-9a-f]{8}\b", known)[-1:]:
            self.hosts("cluster", "stop", "pair", last)
        return "its job goes on" if id_ else "before its job was told; a healthy cluster"

    def _theirs(self, deed: str, node: str, was: tuple[str, int], wrong: list[str]) -> str:
        """Look that the other user's job goes on; where the power of its own host was cut, it is begun anew."""
        lost = deed == "power" and node == "node0"
        with self._told(wrong):
            if not lost and not self.keeps(was):
                wrong.append("theirs: their job is not there any more")
                lost = True
            if deed in ("power", "cable, for long") or lost:
                self.their_up()
            if lost:
                self.their_job()
        return "its own host's power" if deed == "power" and node == "node0" else "lost" if lost else "goes on"

    # ---- leaks

    def _left(self) -> list[str]:
        return [f"{node} {row}" for node in NODES for row in self.hosts.on(node, LEFT).splitlines()]

    def _leaks(self) -> tuple[str, ...]:
        """Return what is there that no healthy cluster has, once it had time to go."""
        end = time.monotonic() + SOON_S
        while (rows := self._left()) and time.monotonic() < end:
            time.sleep(0.5)
        return tuple(rows)
