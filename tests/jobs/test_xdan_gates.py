"""The gates of `xdan` on logs in the words of OpenRLHF 0.8.2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gatebox import Verdict, judge
from jobplan import plan_of, stage_of

from rlbox.job.plan import ProcessPaths

LOG = Path(__file__).parent / "logs/xdan-train.log"
SAVE = "xDAN-RL-Training-GRPO/ckpts/xDAN-L2-RL-32B-Instruct"
HEADER = b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
WEIGHTS = (len(HEADER).to_bytes(8, "little") + HEADER + bytes(4)).hex()


def verdict(run: Path, *, drop: str = "", add: str = "", status: str = "SUCCEEDED", files: bool = True) -> Verdict:
    lines = [line for line in LOG.read_text("utf-8").splitlines() if not (drop and re.search(drop, line))]
    lines += [add] if add else []
    paths = ProcessPaths(run=str(run), job=str(run / "job"), data=str(run), python="python")
    model = {f"{SAVE}/config.json": {"text": "{}"}, f"{SAVE}/model-00001-of-00001.safetensors": {"hex": WEIGHTS}}
    case = {
        "ray": {"status": status, "code": 0 if status == "SUCCEEDED" else 1},
        "logs": {"stage": "\n".join(lines) + "\n"},
        "files": model if files else {},
    }
    return judge(case, run, stage=stage_of(plan_of("xdan", paths=paths), "train"))


def test_a_good_run_passes(tmp_path: Path) -> None:
    found = verdict(tmp_path)
    assert found.passed, found.text
    assert verdict(tmp_path, status="STOPPED").kind == "ray"


@pytest.mark.parametrize(
    ("changes", "kind", "shows"),
    [
        ({"drop": "Global step"}, "metric", "reward has no point"),
        ({"drop": "Starting experience"}, "require", "Starting experience making"),
        ({"files": False}, "file", "config.json"),
        (
            {"add": "(PPOTrainer pid=1) Exception: Request error for 5 times, returning None."},
            "forbid",
            "Request error",
        ),
        ({"add": "(LLMRayActor pid=1) torch.OutOfMemoryError: CUDA out of memory."}, "forbid", "OutOfMemoryError"),
        ({"add": "(PPOTrainer pid=1) ✨ Global step 3: {'kl': 0.1, 'reward': nan}"}, "metric", "reward"),
        ({"add": "(PPOTrainer pid=1) ✨ Global step 1: {'kl': 0.1, 'reward': 0.1}"}, "metric", "reward"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, str], kind: str, shows: str, tmp_path: Path) -> None:
    found = verdict(tmp_path, **changes)  # type: ignore[arg-type]
    assert (found.passed, found.kind) == (False, kind), found.text
    assert shows in found.text
