"""Jobs of a cluster of two real hosts: submitted, followed, left alone, stopped; its logs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from clusterbox import DISK, NODES, Hosts, cut, script
from clusterstand import ADDRESSES, REDUCE, healthy
from enginebox import Result
from following import Follow

NAMES = ("pair",)
PYTHON = "/opt/venv/bin/python"
SECRET = "qX7vR2pL9sKd4TzW"
TRAIN = """
import hashlib, os, sys, time
print("digest", hashlib.sha256(os.environ["API_KEY"].encode()).hexdigest()[:16])
print("files", *sorted(os.listdir(".")), flush=True)
if "tell" in sys.argv:
    print("key", os.environ["API_KEY"])
sys.exit(int(sys.argv[1]))
"""
WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(600)"
ON_WORKER = f"""
import ray, time
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init(log_to_driver=False)
(far,) = [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeManagerAddress"] == "{ADDRESSES["node1"]}"]
@ray.remote(num_cpus=0, max_restarts=0)
class Rank:
    def work(self): time.sleep(600)
    def there(self): return 1
rank = Rank.options(scheduling_strategy=On(far, soft=False)).remote()
ray.get(rank.there.remote())
print("ready", flush=True)
ray.get(rank.work.remote())
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.getuid() != 0, reason="only root can make hosts")]


def work(folder: Path) -> Path:
    """Make a working directory, with what is to stay here in it."""
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (folder / "data/large.bin").write_bytes(bytes(1 << 20))
    return folder


def test_a_job_runs_and_its_exit_code_is_the_drivers(hosts: Hosts, tmp_path: Path) -> None:
    healthy(hosts("cluster", "up", "pair", "--json"))
    folder = work(tmp_path / "work")
    words = ("cluster", "submit", "pair", "--working-dir", str(folder), "--exclude", "data", "--secret", "API_KEY")
    done = hosts(*words, "--", PYTHON, "train.py", "3", API_KEY=SECRET)
    assert done.code == 3, done.err
    assert "ended FAILED, driver exit code 3" in done.err
    assert "files train.py" in done.out
    assert re.search("digest [0-9a-f]{16}", done.out)
    for host in NODES:
        seen = hosts.on(host, "docker inspect $(docker ps -aq); docker logs $(docker ps -aq) 2>&1; ps axwwe")
        assert SECRET not in seen
        assert hosts.on(host, f"grep -rlF {SECRET} {DISK} /tmp /root /var/log /run || true") == ""
    told = hosts(*words, "--", PYTHON, "train.py", "0", "tell", API_KEY=SECRET)
    assert told.code == 0, told.err
    assert "key ***" in told.out
    assert SECRET not in told.out + told.err
    again = hosts("cluster", "submit", "pair", "--json", "--", PYTHON, "-c", REDUCE)
    assert (again.code, again.data["status"], again.data["driver_exit_code"]) == (0, "SUCCEEDED", 0), again.err
    logs = hosts("cluster", "logs", "pair", "--job", again.data["job"], "--json").data["lines"]
    assert " ".join(["nodes", *ADDRESSES.values()]) in [line["text"] for line in logs]
    rows = hosts("cluster", "logs", "pair", "--json").data["lines"]
    assert {row["node"] for row in rows} == {*NODES}
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert len(hosts("cluster", "logs", "pair", "-n", "7").out.splitlines()) == 7


def begun(hosts: Hosts, *words: str) -> subprocess.Popen[str]:
    """Start a command that prints, and return it when it has printed a line; of a job the one that it is ready."""
    argv = hosts.argv("cluster", *words)
    one = subprocess.Popen(argv, cwd=hosts.project, env=hosts.env(), stdout=-1, stderr=-1, text=True)
    assert one.stdout
    line = one.stdout.readline()
    while words[0] == "submit" and line and line != "ready\n":
        line = one.stdout.readline()
    assert line
    return one


def test_a_job_is_left_alone_and_then_stopped(hosts: Hosts, follow: Follow) -> None:
    healthy(hosts("cluster", "up", "pair", "--json"))
    none = follow("cluster", "stop", "pair", "job-none")
    assert none.said.code == 2
    follow.types(none, TARGET="pair", COMMAND="true")
    one = begun(hosts, "submit", "pair", "--", PYTHON, "-c", WAITS)
    one.send_signal(signal.SIGINT)
    _, err = one.communicate(timeout=60)
    assert one.returncode == 130, err
    found = re.search(r"left alone: job (job-[0-9a-f]+) goes on", err)
    assert found
    step = follow.step(("cluster", "submit", "pair"), Result(code=130, out="", err=err))
    logs, stop = step.commands({})
    assert "ready" in hosts(*logs).out
    ended = hosts(*stop, "--json")
    assert (ended.code, ended.data["status"], ended.data["stopped"]) == (0, "STOPPED", True), ended.err
    assert not hosts(*stop, "--json").data["stopped"]
    other = follow("cluster", "stop", "pair", "job-none")
    assert found[1] in other.choices()
    follow.instead(other, "job-none", found[1])
    # one that ended before the command did would leave nothing to follow
    taken = follow("cluster", "submit", "pair", "-d", "--", PYTHON, "-c", "import time; time.sleep(20); print('done')")
    assert follow.types(taken).code == 0
    far = follow("cluster", "submit", "pair", "--nodes", "node1", "--", "true")
    assert far.said.code == 5
    follow.changed(far, ["cluster", "submit", "pair", *far.options({}), "--", "true"], 0)
    hosts.on("node0", "docker kill $(docker ps -q)")
    dead = follow("cluster", "submit", "pair", "--", "true")
    assert "does not run" in dead.said.err
    follow.types(dead)
    follow.again(dead)


def test_a_node_that_fails_under_a_job_is_named(hosts: Hosts) -> None:
    """The worker's container is killed, and the driver fails of it; then the head's, with the driver."""
    healthy(hosts("cluster", "up", "pair", "--json"))
    one = begun(hosts, "submit", "pair", "--", PYTHON, "-c", ON_WORKER)
    hosts.on("node1", "docker kill $(docker ps -q)")
    _, err = one.communicate(timeout=180)
    assert one.returncode == 1, err
    assert "ended FAILED, driver exit code 1" in err
    assert "node1: its container was killed: exit code 137" in err
    healthy(hosts("cluster", "up", "pair", "--json"))
    one = begun(hosts, "submit", "pair", "--", PYTHON, "-c", WAITS)
    hosts.on("node1", "docker kill $(docker ps -q)")
    until_said(one, "node1: its container was killed: exit code 137")
    script("cut", "node1")
    try:
        until_said(one, "node1: neither this machine nor the other nodes reach it")
    finally:
        script("heal", "node1")
    assert one.poll() is None  # all that is said while the job goes on
    hosts.on("node0", "docker kill $(docker ps -q)")
    _, err = one.communicate(timeout=180)
    assert one.returncode == 5, err
    assert "is no longer followed" in err
    first = r"\n  node1: its container was killed: .*, it failed first\n  node0: its container was killed: "
    assert re.search(first, err), err


def until_said(process: subprocess.Popen[str], words: str) -> None:
    """Read what a command says until it says this; it does not end before."""
    assert process.stderr
    said = [process.stderr.readline()]
    while said[-1] and words not in said[-1]:
        said.append(process.stderr.readline())
    assert said[-1], said


def test_a_broken_connection_ends_the_watching_alone(hosts: Hosts, follow: Follow) -> None:
    """Who follows a job or the logs is told that the connection broke; the job goes on, and ends well."""
    healthy(hosts("cluster", "up", "pair", "--json"))
    watched = begun(hosts, "logs", "pair", "-f")
    one = begun(hosts, "submit", "pair", "--", PYTHON, "-c", WAITS.replace("600", "20"))
    for process in (one, watched):
        cut(process)
    _, err = one.communicate(timeout=60)
    assert one.returncode == 5, err
    assert "is no longer followed" in err
    _, err = watched.communicate(timeout=60)
    assert watched.returncode == 5, err
    step = follow.step(("cluster", "logs", "pair"), Result(code=5, out="", err=err))
    follow.again(step)
