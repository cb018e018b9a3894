"""A rented machine there and back: the account recorded, the instance a real container behind sshd.

Its on-start script, its stops, its disk and its files are real; what only an account can show is untested.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from enginebox import Box, Result, wait_until
from fakes import load_cases
from projectbox import own
from vastbox import KEY, Platform, serving
from vastmachine import OWN_KEY, Instance

CASES = load_cases("engine", "test_vast_there_and_back")
pytestmark = pytest.mark.allow("sockets")
SPEC = CASES["SPEC"]
# Counts on from where it was cut, until it may end; every tenth step leaves a checkpoint behind, the last of them torn.
TRAIN = """
import os, pathlib, sys, time
disk, last = pathlib.Path(sys.argv[1]), int(sys.argv[2])
at = disk / "at"
step = int(at.read_text()) if at.exists() else 0
print("resumed at" if step else "begun at", step, flush=True)
over = False
while not over:
    time.sleep(0.2)
    step += 1
    over = step % 10 == 0 and (step >= last or (disk / "may-end").exists())
    print("step", step, flush=True)
    if step % 10 == 0:
        folder = disk / f"ckpts/checkpoint-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        head = b'{"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}'
        whole = len(head).to_bytes(8, "little") + head + b"abcd"
        (folder / "model.safetensors").write_bytes(whole[:-1] if over else whole)
        (folder / "config.json").write_text("{}")
        (folder / "shard.bin").write_bytes(b"w" * 3_000_000)
    at.with_suffix(".new").write_text(str(step))
    at.with_suffix(".new").replace(at)
print("keys", sorted(name for name in os.environ if name.endswith("_KEY")), os.environ["FROM_PLATFORM"])
print("Final loss", (disk / "phase_1_ SFT/text.txt").read_text().strip())
"""
JOB = CASES["JOB"]
SECRET = "planted-for-an-instance-5ecret"


@dataclass
class Rented:
    """The container that is the instance, and what a person types at home."""

    instance: Instance
    box: Box
    platform: Platform

    def sh(self, text: str) -> str:
        return self.instance.sh(text)

    def rlbox(self, *words: str) -> Result:
        return self.box("vast", *words)


@pytest.fixture
def rented(tmp_path: Path) -> Iterator[Rented]:
    project, data = tmp_path / "project", tmp_path / "disk"
    (project / "images/rented").mkdir(parents=True)
    (project / "images/rented/target.toml").write_text(SPEC)
    data.mkdir()
    name = f"rlbox-vast-{uuid.uuid4().hex[:12]}"
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "ssh").write_text(f'#!/bin/sh\nexec docker exec -i {name} ssh -F /dev/null -i /key "$@"\n')
    (commands / "ssh").chmod(0o755)
    with serving(Platform()) as platform:
        extra = {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "VAST_URL": platform.url,
            "VAST_API_KEY": KEY,
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }
        mounts = ("--volume=/tmp:/tmp", f"--volume={data}:{data}")  # for ssh, which is started in it: see `ssh`
        instance = Instance(name, ("--network=none", *mounts))
        one = Rented(instance=instance, box=Box(project=project, data=data, extra=extra), platform=platform)
        one.box.job("count", JOB)
        for words in (("lock", "rented"), ("build", "rented", "--rebuild")):
            done = one.box(*words)
            assert done.code == 0, done.err
        platform.on_create = instance.create
        platform.on_state = lambda row, state: instance.power(state)
        platform.on_destroy = lambda row: instance.destroy()
        yield one
    subprocess.run(["docker", "rm", "--force", "--volumes", name], capture_output=True)


def come_home(rented: Rented, number: int, run: str, home: Path) -> None:
    """Fetch all, lose a file of it, and destroy: which is refused until it is at home again."""
    some = rented.rlbox("fetch", str(number), "phase_1_ SFT", "at", "--to", str(home), "--json")
    assert (some.code, some.data["brought"], (home / "phase_1_ SFT/text.txt").read_text()) == (0, 2, "42\n"), some.err
    fetched = rented.rlbox("fetch", str(number), "--to", str(home), "--json")
    assert fetched.code == 0, fetched.err
    last = int((home / "at").read_text())
    steps = sorted(int(path.name.rpartition("-")[2]) for path in (home / "ckpts").iterdir())
    assert steps == list(range(10, last, 10))
    assert json.loads((home / f"runs/{run}/run.json").read_text())["state"] == "passed"
    assert [row["state"] for row in rented.box("runs", "--data", str(home), "--json").data["runs"]] == ["passed"]
    second = rented.rlbox("fetch", str(number), "--json")
    assert (second.code, second.data["brought"]) == (0, 0), second.err
    (home / "ckpts/checkpoint-10/shard.bin").unlink()
    assert rented.rlbox("destroy", str(number), "--yes").code == 5
    assert rented.rlbox("fetch", str(number), "--json").data["brought"] == 1
    gone = rented.rlbox("destroy", str(number), "--yes")
    assert gone.code == 0, gone.err
    assert rented.platform.instances == {}


def test_up_cut_resumed_fetched_destroyed(rented: Rented, tmp_path: Path) -> None:
    project = rented.box.project
    (project / "train.py").write_text(TRAIN)
    (project / "text").mkdir()
    (project / "text/text.txt").write_text("42\n")
    (project / "my.env").write_text(f"WANDB_API_KEY={SECRET}\n")
    data = ("--upload", "train.py", "--upload", "text=phase_1_ SFT")
    up = ("up", "count", "--image", own("rented"), *data, "--env-file", "my.env", "--then", "stop", "--detach")
    dry = rented.rlbox(*up, "--dry-run")
    assert dry.code == 0, dry.err
    assert "after confirmation, and run count there" in dry.out.splitlines()[-1]

    done = rented.rlbox(*up, "--yes", "--json")
    assert done.code == 0, done.err
    number, run = done.data["instance"], done.data["run"]
    again = rented.rlbox(*up, "--instance", str(number), "--json")  # as if the first call had been cut
    assert (again.code, again.data["run"]) == (0, run), again.err
    wait_until(lambda: int(rented.sh("cat /workspace/at || echo 0").strip() or 0) > 10, "some steps")
    other = rented.rlbox("up", "count", "--set", "last=10", "--env-file", "my.env", "--instance", str(number))
    assert (other.code, f"the instance carries out run {run}" in other.err) == (8, True), other.err
    refused = rented.rlbox("destroy", str(number), "--yes")
    assert refused.code == 5
    assert "not at home: " in refused.err

    stopped = rented.rlbox("stop", str(number))  # the machine goes off while the training works
    assert stopped.code == 0, stopped.err
    assert (
        f"instance {number} is exited: its disk cannot be checked" in rented.rlbox("destroy", str(number), "--yes").err
    )
    started = rented.rlbox("start", str(number))
    assert started.code == 0, started.err
    rented.sh("touch /workspace/may-end")
    wait_until(lambda: rented.sh("cat /account.log || true"), "the end of the run")
    asked = rented.sh("cat /account.log").strip()
    assert asked == f'/api/v0/instances/{number}/ Bearer {OWN_KEY} {{"state": "stopped"}}'
    assert json.loads(rented.sh("cat /workspace/.rlbox-up/ended.json"))["state"] == "passed"
    log = rented.sh(f"cat /workspace/runs/{run}/stages/*/stage.log /workspace/runs/{run}/stages/*/attempt-1/stage.log")
    assert "begun at 0" in log
    assert "resumed at" in log
    assert SECRET not in log
    assert [line for line in log.splitlines() if line.startswith("keys")] == ["keys ['WANDB_API_KEY', 'WANDB_KEY'] yes"]

    come_home(rented, number, run, tmp_path / "home")
