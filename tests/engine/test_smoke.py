"""The main job on the `local` target, for real: three stages with torch, vLLM, Ray and TRL; then sabotage."""

from __future__ import annotations

import json
import os

import pytest
from enginebox import Box, wait_until


def stages(box: Box) -> dict[str, str]:
    return {stage["name"]: stage["state"] for stage in box.state()["stages"]}


def stage_or_none(box: Box, name: str) -> str:
    try:
        return stages(box)[name]
    except (OSError, ValueError, IndexError, KeyError):
        return ""


@pytest.mark.timeout(3600)  # a minute and a half on two quiet cores
def test_the_three_stages_pass_and_leave_what_they_promise(local: Box) -> None:
    result = local("run", "smoke", "--json")
    assert result.code == 0, result.err + result.out
    assert stages(local) == {"train-only": "passed", "rollout-only": "passed", "smoke": "passed"}
    run = local.runs()[-1]
    log = (run / "stages/3-smoke/stage.log").read_text()
    assert "samples from rollout to train" in log
    assert "[holdem][rollout 0]" in log
    assert local.state()["stages"][2]["ray_status"] == "SUCCEEDED"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {record["stage"] for record in records} == {"train-only", "rollout-only", "smoke"}
    page = run.with_name("report.html")
    said = local("report", "--target", "local", "--out", str(page))
    assert (said.code, said.err) == (0, "")
    html = page.read_text()
    assert all(f'data-name="{name}"' in html for name in ("loss", "reward"))


@pytest.mark.slow
def test_a_checkpoint_truncated_between_stages_is_found(local: Box) -> None:
    process = local.start("run", "smoke")
    wait_until(lambda: stage_or_none(local, "train-only") == "running", "train-only runs")
    weights = local.runs()[-1] / "train/checkpoint/model.safetensors"
    wait_until(weights.exists, "the checkpoint")
    # the stage ends only after its gate has read the file, so the cut comes after that
    wait_until(lambda: stage_or_none(local, "train-only") == "passed", "train-only passed")
    os.truncate(weights, 1000)
    _, err = process.communicate(timeout=300)
    assert process.returncode in (1, 5), err
    found = stages(local)
    assert found["train-only"] == "passed"
    assert "failed" in (found["rollout-only"], found["smoke"])
    assert "model.safetensors" in err


def gates(box: Box) -> list[tuple[str, str, str, str]]:
    """What the gates of the latest run found: stage, kind, rule, state; its own folder is {run}."""
    state, plan = box.state(), json.loads((box.runs()[-1] / "plan.json").read_text())
    return [
        (stage["name"], rule["kind"], rule["rule"].replace(plan["paths"]["run"], "{run}"), rule["state"])
        for stage in state["stages"]
        for rule in stage["gate"]
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_docker_and_here_find_the_same_at_every_gate(local: Box) -> None:
    """The same job in a container and on the machine itself; about eight minutes on two cores."""
    found = {}
    for place in ("docker", "here"):
        result = local("run", "smoke", "--place", place)
        assert result.code == 0, result.err + result.out
        assert local.state()["place"] == place
        found[place] = gates(local)
    assert found["docker"] == found["here"]
    assert {state for *_, state in found["here"]} == {"held"}
