"""A deadlocked collective over gloo in the shipped image: found in time, the missing rank named first."""

from __future__ import annotations

import json

import pytest
from enginebox import Box

JOB = """
title = "two ranks, one of which never comes"
target = "local"
[[stages]]
name = "reduce"
title = "all_reduce over gloo"
command = ["{python}", "{job}/ranks/ranks.py"]
listens = ["29511", "ephemeral"]
limits = { total_s = 300, silence_s = 10 }
"""

RANKS = """
import os, subprocess, sys
import torch
import torch.distributed as dist

def load_batch():
    os.read(os.pipe()[0], 1)

if "RANK" not in os.environ:
    ranks = [subprocess.Popen([sys.executable, __file__], env={**os.environ, "RANK": str(n)}) for n in range(3)]
    raise SystemExit(max(rank.wait() for rank in ranks))
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29511", rank=rank, world_size=3)
dist.all_reduce(torch.ones(4))
if rank == 0:
    print("[SYNC] Waiting for rollout", flush=True)
if rank == 1:
    load_batch()
dist.all_reduce(torch.ones(4))
"""


@pytest.mark.slow
def test_a_collective_over_gloo_without_one_rank(local: Box) -> None:
    local.job("ranks", JOB)
    folder = local.project / "jobs" / "ranks"
    folder.mkdir()
    (folder / "ranks.py").write_text(RANKS)
    result = local("run", "ranks")
    assert result.code == 7, result.err
    (stage,) = local.state()["stages"]
    cause = stage["cause"]
    assert (cause["kind"], cause["phase"], stage["phase"]) == ("silence", "weight-sync", "weight-sync")
    assert "actor_rollout_ref.nccl_timeout" in cause["next_step"]
    facts = json.loads((local.runs()[-1] / stage["directory"] / "evidence" / "hang.json").read_text())
    assert 10.0 <= facts["silent_s"] < 15.0
    first, *others = facts["processes"]
    assert first["rank"] == "1"
    assert "reads from a pipe, which no other process has open" in first["waits"]
    assert not first["stack"] or "load_batch" in first["waits"]
    waiting = {process["rank"]: process for process in others if process["rank"]}
    assert set(waiting) == {"0", "2"}
    for process in waiting.values():
        assert not process["stack"] or process["collective"] == "all_reduce"
        assert process["stack"] or "SYS_PTRACE" in process["trouble"]
