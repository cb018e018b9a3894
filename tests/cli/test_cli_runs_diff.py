"""`rlbox runs diff`: how two runs differ, and that two equal ones do not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import ON_IMAGE, Folder, Rlbox

from rlbox.gate.line_rules import RuleState
from rlbox.job.job import load_job
from rlbox.job.params import resolve_params
from rlbox.job.plan import ProcessPaths, RunPlan, plan_run
from rlbox.record.run_store import RunStore
from rlbox.record.state import RunState, create_run_state, replace_stage, write_run_state
from rlbox.run.backend import open_container_runtime
from rlbox.secrets.masks import SecretMasker

JOB = """
title = "learns"
target = "mine"
optional_secrets = ["HF_TOKEN"]
[params]
rounds = { default = 2, help = "rounds" }
wait = { default = "30s", unit = "seconds", help = "patience" }
[profiles.full]
rounds = 8
[env]
HOME = "{run}/home"
[[stages]]
name = "train"
title = "learns"
secrets = ["HF_TOKEN"]
command = ["{python}", "train.py", "--rounds", "{param.rounds}", "--out", "{run}/out"]
env = { WAIT = "{param.wait}" }
gate = { require = [{ pattern = "loss" }], files = [{ path = "{run}/out" }] }
"""


@pytest.fixture
def disk(folder: Folder) -> Path:
    folder.target("mine", ON_IMAGE)
    folder.job("two", JOB)
    data = folder.path / "disk"
    data.mkdir()
    return data


def plan_of(
    folder: Folder, disk: Path, run_id: str, profile: str = "", settings: dict[str, str] | None = None
) -> RunPlan:
    run = str(disk / "runs" / run_id)
    job = load_job(folder.project, "two")
    paths = ProcessPaths(run=run, job=f"{run}/job", data=str(disk), python="/opt/venv/bin/python")
    return plan_run(
        job, resolve_params(job, profile, settings or {}), paths, run_id=run_id, place="docker", target="mine"
    )


def make_run(
    folder: Folder, disk: Path, plan: RunPlan, *, version: str = "1.16.0", loss: float = 0.5, seconds: float = 10.0
) -> Path:
    text = folder.lock("mine").read_text().replace("1.16.0", version)
    spec = {"job.toml": JOB, "target.toml": ON_IMAGE, "lock.json": text}
    files = {f"spec/{name}": value for name, value in spec.items()}
    run_dir = RunStore(data_dir=disk, open_runtime=open_container_runtime).create_run_dir(plan, None, files)
    lines = [{"stage": "train", "step": 1, "loss": 9.0}, {"stage": "train", "step": 2, "loss": loss}]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn')
    write_run_state(run_dir, passed(plan, seconds), SecretMasker({}))
    return run_dir


def passed(plan: RunPlan, seconds: float, state: str = "held") -> RunState:
    run = create_run_state(plan, 0)
    gate = tuple(dataclasses.replace(rule, state=state) for rule in run.stages[0].gate)
    assert all(isinstance(rule, RuleState) for rule in gate)
    run = replace_stage(run, "train", state="passed", exit_code=0, seconds=seconds, gate=gate)
    return dataclasses.replace(run, state="passed", exit_code=0)


def test_the_same(rlbox: Rlbox, folder: Folder, disk: Path) -> None:
    for name, seconds in (("two-a", 10.0), ("two-b", 12.5)):
        make_run(folder, disk, plan_of(folder, disk, name), seconds=seconds)
    said = rlbox("runs", "diff", "two-a", "two-b", "--target", "mine", "--data", str(disk))
    assert (said.code, said.err) == (0, "")
    assert "the same: configuration, gates, outcome and metrics\n" in said.out
    assert said.out.endswith("@@ durations\n  train: 10 s -> 12 s\n")


def test_different(rlbox: Rlbox, folder: Folder, disk: Path, golden: Callable[[str, str], None]) -> None:
    make_run(folder, disk, plan_of(folder, disk, "two-a"), loss=0.25)
    other = dataclasses.replace(plan_of(folder, disk, "two-b", "full", {"wait": "1min"}), secrets=("HF_TOKEN",))
    run_dir = make_run(folder, disk, other)
    write_run_state(run_dir, passed(other, 10.0, "broken"), SecretMasker({}))
    (run_dir / "spec/job.toml").write_text(JOB.replace("patience", "how long"))
    words = ("runs", "diff", "two-a", "two-b", "--target", "mine", "--data", str(disk))
    said = rlbox(*words)
    assert said.code == 1
    told, gates = said.out.split("@@ gates\n")
    golden("cli/runs-diff.txt", told)
    assert "-train: require loss: held\n+train: require loss: broken\n" in gates
    assert "-train: file {run}/out: held\n+train: file {run}/out: broken\n" in gates
    assert gates.endswith("@@ metrics\n  train.loss: 0.25 -> 0.5\n")
    data = rlbox(*words, "--json").data["diff"]
    assert (data["same"], data["same_configuration"]) == (False, False)
    assert {"part": "metrics", "name": "train.loss", "before": "0.25", "after": "0.5"} in data["differences"]


def test_only_what_came_out_differs(rlbox: Rlbox, folder: Folder, disk: Path) -> None:
    make_run(folder, disk, plan_of(folder, disk, "two-a"))
    run_dir = make_run(folder, disk, plan_of(folder, disk, "two-b"))
    (run_dir / "run.json").unlink()
    said = rlbox("runs", "diff", "two-a", "two-b", "--target", "mine", "--data", str(disk))
    assert said.code == 1
    assert said.out.splitlines()[2] == "the configuration is the same, what came out is not"
    assert "+run: never began" in said.out


def test_a_run_is_exported(rlbox: Rlbox, folder: Folder, disk: Path, tmp_path: Path) -> None:
    make_run(folder, disk, plan_of(folder, disk, "two-a"))
    words = ("runs", "export", "two-a", "--to", str(tmp_path / "a.prom"), "--data", str(disk), "--format")
    assert rlbox(*words, "prometheus").out == f"{tmp_path}/a.prom\n"
    assert 'rlbox_metric{run="two-a",stage="train",name="loss"} 0.5\n' in (tmp_path / "a.prom").read_text()
