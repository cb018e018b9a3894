"""`rlbox run xdan --place cluster` on two real hosts: the job's own stages, reward server and gates, over both nodes.

OpenRLHF is played: its stand-in reads the very command by 0.10.4's options, joins Ray and works on both nodes.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterbox import DISK, LAB, NODES, Hosts, cut
from clusterstand import ADDRESSES, built, healthy
from enginebox import CHECKOUT, Result, unsized
from following import Follow

NAMES = ("runs", "mixed")
ON = ("--place", "cluster", "--target", "runs")
MODEL, DATA = "models/xDAN-L2-Qwen25-32b-Instruct", "datasets/xDAN-Agentic-openMath-r1-chatml.json"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.getuid() != 0, reason="only root can make hosts")]


def lay_job(project: Path) -> None:
    """Copy the shipped job, without what it says of memory, and with a folder that its programs import from."""
    text = unsized((CHECKOUT / "jobs/xdan.toml").read_text())
    own = 'PYTHONPATH = "{job}"'
    assert text.count(own) == 1
    (project / "jobs").mkdir()
    (project / "jobs/xdan.toml").write_text(text.replace(own, 'PYTHONPATH = "{job}:{data}/stack"'))
    shutil.copytree(CHECKOUT / "jobs/xdan", project / "jobs/xdan")


def lay_data(hosts: Hosts, folder: Path) -> None:
    """Lay model and problems on both hosts, and OpenRLHF's stand-in on the head and on this machine's disk."""
    head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    for path in (MODEL, "datasets", "stack/openrlhf/cli"):
        (folder / path).mkdir(parents=True)
    (folder / MODEL / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
    (folder / MODEL / "config.json").write_text("{}")
    rows = [{"message": [{"role": "user", "content": f"{n} + 1?"}], "answer": str(n + 1)} for n in range(4)]
    (folder / DATA).write_text(json.dumps(rows))
    stack = folder / "stack"
    shutil.copy(CHECKOUT / "tests/engine/trainers/train_over_nodes.py", stack / "openrlhf/cli/train_ppo_ray.py")
    shutil.copy(CHECKOUT / "tests/jobs/openrlhf-0.10.4-options.txt", stack / "openrlhf/cli/options.txt")
    shutil.copy(CHECKOUT / "tests/jobs/optionbox.py", stack / "optionbox.py")
    for host, parts in zip(NODES, (("models", "datasets", "stack"), ("models", "datasets")), strict=True):
        tar = subprocess.run(["tar", "-C", folder, "-c", *parts], check=True, capture_output=True).stdout
        subprocess.run([LAB / "bin/ssh", host, f"tar -C {DISK} -x"], check=True, input=tar)
    shutil.copytree(folder, hosts.project / "disk", dirs_exist_ok=True)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts, a project with the job and a target that is built here, and what the job reads."""
    project = tmp_path_factory.mktemp("project")
    lay_job(project)
    with built(project, NAMES) as found:
        lay_data(found, tmp_path_factory.mktemp("data"))
        yield found


@pytest.fixture
def hosts(two: Hosts, follow: Follow) -> Iterator[Hosts]:
    """The hosts; whatever a test did, no container of a cluster or a run is left when its cluster is down."""
    follow.rlbox = two
    yield two
    for name in NAMES:
        done = two("cluster", "down", name, "--force")
        assert done.code == 0, done.err
    for host in NODES:
        for label in ("rlbox.cluster", "rlbox.run"):
            assert two.on(host, f"docker ps --all --filter label={label} --format '{{{{.Names}}}}'") == ""


def stage_log(hosts: Hosts, run: str, stage: str, name: str = "stage.log") -> str:
    return hosts.on("node0", f"cat {DISK}/runs/{run}/stages/*-{stage}/{name}")


def test_a_run_is_on_both_nodes(hosts: Hosts) -> None:
    healthy(hosts("cluster", "up", "runs", "--json"))
    words = ("run", "xdan", *ON, "--set", "episodes=3")
    planned = hosts(*words, "--dry-run")
    assert planned.code == 0, planned.err + planned.out
    assert f"head = {ADDRESSES['node0']}  (cluster)" in planned.out
    assert "# service ray" not in planned.out
    assert f"http://{ADDRESSES['node0']}:5001/get_reward" in planned.out
    done = hosts(*words, "--json")
    assert done.code == 0, done.err
    run = done.data["run"]
    assert [stage["state"] for stage in done.data["stages"]] == ["passed"] * 4
    assert "[xdan][nodes] passed: 2 nodes" in stage_log(hosts, run, "cluster")
    train = stage_log(hosts, run, "train")
    assert train.count(str(sorted(ADDRESSES.values()))) == 3
    assert "Starting experience making with 4 samples; resumed: False" in train
    record = json.loads(hosts.on("node0", f"cat {DISK}/runs/{run}/plan.json"))
    assert [node["name"] for node in record["cluster"]["nodes"]] == [*NODES]
    for address in ADDRESSES.values():
        assert f"asked http://{ADDRESSES['node0']}:5001/get_reward on {address}" in train
    far = hosts("logs", run, "--target", "runs", "--data", DISK, "-n", "5", DOCKER_HOST="ssh://node0")
    assert far.code == 0, far.err
    assert "Global step 3" in far.out


def begun(hosts: Hosts, *words: str) -> tuple[subprocess.Popen[str], str]:
    """Start a run, and return it with its name once it trains."""
    one = subprocess.Popen(hosts.argv(*words), cwd=hosts.project, env=hosts.env(), stdout=-1, stderr=-1, text=True)
    assert one.stderr
    run, end = "", time.monotonic() + 300
    while not run:
        found = re.search(r"rlbox logs (xdan-\S+)", one.stderr.readline())
        run = found[1] if found else ""
        assert time.monotonic() < end
    while "Global step 2" not in hosts.on("node0", f"cat {DISK}/runs/{run}/stages/*-train/stage.log || true"):
        assert one.poll() is None, one.communicate()[1]
        assert time.monotonic() < end
        time.sleep(1)
    return one, run


def test_a_killed_worker_stops_the_run_and_is_named(hosts: Hosts, follow: Follow) -> None:
    healthy(hosts("cluster", "up", "runs", "--json"))
    words = ("run", "xdan", *ON, "--set", "episodes=100000")
    one, run = begun(hosts, *words)
    hosts.on("node1", "docker kill $(docker ps -q)")
    _, err = one.communicate(timeout=180)
    assert one.returncode == 5, err
    assert "cause: node node1 of cluster runs is gone: its Ray has ended" in err
    assert "node1: its container was killed: exit code 137" in err
    folder = f"{DISK}/runs/{run}/stages/3-train/evidence"
    status = json.loads(hosts.on("node0", f"cat {folder}/nodes.json"))
    assert [(row["where"], row["id"]) for row in status["failures"]] == [("node1", "container-killed")]
    step = follow.step(words, Result(code=5, out="", err=err))
    up, again = step.commands({})
    refused = follow("run", "xdan", *ON)
    assert "node1" in refused.said.err
    assert hosts(*up).code == 0
    done = hosts(*again, "--set", "episodes=2", "--json")
    assert done.code == 0, done.err
    assert "resumed: True" in stage_log(hosts, run, "train")


def test_a_run_goes_on_when_the_connection_breaks(hosts: Hosts, follow: Follow) -> None:
    """The connection to the head is ended in the middle; by another the run is looked at, and stopped."""
    healthy(hosts("cluster", "up", "runs", "--json"))
    words = ("run", "xdan", *ON, "--set", "episodes=100000")
    one, run = begun(hosts, *words)
    cut(one)
    _, err = one.communicate(timeout=180)
    assert one.returncode == 5, err
    follow.rlbox = functools.partial(hosts, DOCKER_HOST="ssh://node0")
    step = follow.step(words, Result(code=5, out="", err=err))
    shown = follow.types(step)
    assert "Global step 2" in shown.out
    used = follow("cluster", "down", "runs")
    assert (used.said.code, f"is in use: run {run}" in used.said.err) == (8, True), used.said.err
    follow.types(used)
    record = json.loads(hosts.on("node0", f"cat {DISK}/runs/{run}/run.json"))
    assert record["state"] == "interrupted"
    left = hosts("run", "xdan", *ON, "--set", "episodes=2", "--detach")
    assert left.code == 0, left.err
    attached = hosts("attach", left.out.strip(), "--target", "runs", "--data", DISK, DOCKER_HOST="ssh://node0")
    assert attached.code == 0, attached.err


def test_a_head_that_is_this_machine(hosts: Hosts) -> None:
    healthy(hosts("cluster", "up", "mixed", "--json"))
    done = hosts("run", "xdan", "--place", "cluster", "--target", "mixed", "--set", "episodes=2", "--json")
    assert done.code == 0, done.err
    disk = str(hosts.project / "disk")
    assert done.data["folder"].startswith(f"{disk}/runs/xdan-")
    assert f"from here: rlbox logs {done.data['run']} --target mixed --data {disk}" in done.err
    near = hosts("logs", done.data["run"], "--target", "mixed", "--data", disk, "-n", "5")
    assert "Global step 2" in near.out
