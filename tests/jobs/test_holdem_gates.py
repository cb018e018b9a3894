"""The gates of `holdem` on logs in the words of slime v0.3.1: whole, with one thing missing, with one too many."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fakes import load_cases
from gatebox import Verdict, judge
from jobplan import plan_of, stage_of

from rlbox.job.plan import ProcessPaths

CASES = load_cases("jobs", "test_holdem_gates")
LOGS = Path(__file__).parent / "logs"
TRACKER = {
    "smoke": "exp/holdem_smoke_beijing/latest_checkpointed_iteration.txt",
    "full": "exp/holdem_full50_beijing/latest_checkpointed_iteration.txt",
    "resume": "exp/holdem_full50_beijing/latest_checkpointed_iteration.txt",
}
OOM = "(MegatronTrainRayActor pid=7410) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB."
ROUTER = (
    "(RolloutManager pid=1) response={'error': {'code': 'no_available_workers', 'message': 'No available workers'}}"
)
ANSWERED_503 = '(SGLangEngine pid=2) INFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 503 Service Unavailable'
TAKEN = "(SGLangEngine pid=2) OSError: [Errno 98] error while attempting to bind on address: address already in use"


def verdict(
    stage: str,
    run: Path,
    *,
    drop: str = "",
    add: str = "",
    status: str = "SUCCEEDED",
    log: str = "",
    files: bool = True,
) -> Verdict:
    """Judge a stage's log without the lines that fit `drop`, with the line `add` behind its first."""
    lines = (LOGS / f"holdem-{log or stage}.log").read_text("utf-8").splitlines()
    lines = [line for line in lines if not (drop and re.search(drop, line))]
    lines[1:1] = [add] if add else []
    profile = stage if stage in ("full", "resume") else ""
    paths = ProcessPaths(run=str(run), job=str(run / "job"), data=str(run), python="python")
    rows = [json.dumps({"stage": stage, "rollout": n, "mean_reward": 0.1 * n}) for n in range(2)]
    written = {TRACKER[stage]: {"text": "1"}} if files and stage in TRACKER else {}
    case = {
        "ray": {"status": status, "code": 0 if status == "SUCCEEDED" else 1},
        "logs": {"stage": "\n".join(lines) + "\n"},
        "files": {**written, "metrics.jsonl": {"text": "\n".join(rows) + "\n"}},
    }
    return judge(case, run, stage=stage_of(plan_of("holdem", profile, paths=paths), stage))


@pytest.mark.parametrize("stage", ["megatron-only", "sglang-only", "smoke", "resume"])
def test_a_good_run_passes(stage: str, tmp_path: Path) -> None:
    found = verdict(stage, tmp_path)
    assert found.passed, found.text
    whole = verdict(stage, tmp_path, status="FAILED")
    assert (whole.kind, whole.passed) == ("ray", False)


def test_full_asks_for_rollouts_of_its_size(tmp_path: Path) -> None:
    assert verdict("full", tmp_path, log="resume").passed
    small = verdict("full", tmp_path, log="smoke")
    assert (small.kind, "'train/global_batch_size': 128" in small.text) == ("require", True)


@pytest.mark.parametrize(("stage", "drop", "kind", "shows"), CASES["what_is_missing_is_named"])
def test_what_is_missing_is_named(stage: str, drop: str, kind: str, shows: str, tmp_path: Path) -> None:
    found = verdict(stage, tmp_path, drop=drop)
    assert (found.passed, found.kind) == (False, kind)
    assert shows in found.text


@pytest.mark.parametrize(
    ("stage", "line", "shows"),
    [
        (
            "megatron-only",
            "(SGLangEngine pid=1) INFO:     Application startup complete.",
            "Application startup complete",
        ),
        ("megatron-only", "(SGLangEngine pid=1) server_args=ServerArgs(model_path='m')", "server_args"),
        ("sglang-only", "(MegatronTrainRayActor pid=3) [t] model.py:909 - step 0: {'train/loss': 0.1}", "step 0"),
        ("sglang-only", OOM, "OutOfMemoryError"),
        ("sglang-only", TAKEN, "already in use"),
        ("sglang-only", ROUTER, "no_available_workers"),
        ("sglang-only", ANSWERED_503, "503"),
        ("smoke", OOM, "OutOfMemoryError"),
        ("smoke", ROUTER, "no_available_workers"),
        ("resume", OOM, "OutOfMemoryError"),
        ("resume", "(MegatronTrainRayActor pid=7) [t] model.py:909 - step 0: {'train/loss': 0.1}", "step 0"),
        ("resume", "(RolloutManager pid=7) [t] plugin.py:100 - [holdem][rollout 0] mean_reward=0.1", "rollout 0"),
    ],
)
def test_what_must_not_come_stops_the_stage(stage: str, line: str, shows: str, tmp_path: Path) -> None:
    found = verdict(stage, tmp_path, add=line)
    assert (found.passed, found.kind) == (False, "forbid")
    assert shows in found.text


@pytest.mark.parametrize("line", CASES["what_only_looks_bad_does_not"])
def test_what_only_looks_bad_does_not(line: str, tmp_path: Path) -> None:
    assert verdict("sglang-only", tmp_path, add=line).passed


def test_a_loss_that_is_no_number_stops(tmp_path: Path) -> None:
    bad = "(MegatronTrainRayActor pid=3) [t] model.py:909 - step 0: {'train/loss': nan, 'train/step': 0}"
    found = verdict("smoke", tmp_path, drop=" - step 0:", add=bad)
    assert (found.passed, found.kind) == (False, "metric")


def test_an_output_folder_of_an_earlier_run_is_none(tmp_path: Path) -> None:
    assert verdict("smoke", tmp_path, files=False).kind == "file"
