"""The job `holdem` in place and on a real Ray, with trees in the place of slime and Megatron that do no learning."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from enginebox import Box

# Prints the lines of slime 0.3.1, calls the job's functions where slime does, and needs the patched Megatron.
TRAIN = """
import importlib, logging, os, sys
logging.basicConfig(level=logging.INFO, format="[now] %(filename)s:%(lineno)d - %(message)s", force=True)
import megatron.core
assert megatron.core.two == 22, megatron.core.__file__
def value(option): return sys.argv[sys.argv.index(option) + 1]
def function(option):
    module, _, name = value(option).rpartition(".")
    return getattr(importlib.import_module(module), name)
class Sample:
    class Status: TRUNCATED = "truncated"
    status, response_length, reward = "completed", 5, {"score": 0.5, "well_formed": True, "exact": False}
def say(text): print(text, flush=True)
def step(n):
    say(f"(MegatronTrainRayActor pid=1) [now] model.py:665 - step {n}: {{'train/loss': 0.{9 - n}, "
        "'train/train_rollout_logprob_abs_diff': 0.01}")
if "--debug-train-only" in sys.argv:
    function("--rollout-function-path")
    step(0), step(1)
    sys.exit()
function("--custom-generate-function-path"), function("--custom-rm-path")
say("(SGLangEngine pid=1) INFO:     Application startup complete.")
say('(SGLangEngine pid=1) INFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 200 OK')
for n in range(int(value("--num-rollout"))):
    function("--custom-rollout-log-function-path")(n, None, [Sample()] * 8, None, 1.0)
    say(f"[now] rollout.py:251 - Final collected {value('--global-batch-size')} samples from rollout to train")
    if "--debug-rollout-only" not in sys.argv:
        say(f"(MegatronTrainRayActor pid=1) [now] data.py:210 - rollout {n}: {{'rollout/raw_reward': 0.5}}")
        step(n)
if "--save" in sys.argv:
    os.makedirs(value("--save"), exist_ok=True)
    open(value("--save") + "/latest_checkpointed_iteration.txt", "w").write("1")
"""
PATCH = """\
--- a/megatron/core/__init__.py
+++ b/megatron/core/__init__.py
@@ -1,2 +1,2 @@
 one = 1
-two = 2
+two = 22
"""
HEADER = b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'


def lay(data: Path) -> list[str]:
    """Lay everything that the job wants on the data disk; return the settings that name the trees."""
    model, ref = data / "models/poker-qwen3-8b-merged", data / "models/poker-qwen3-8b-merged_torch_dist"
    core, patches = data / "megatron/megatron/core", data / "slime/docker/patch/latest"
    for folder in (model, ref, core, patches, data / "data"):
        folder.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(len(HEADER).to_bytes(8, "little") + HEADER + bytes(4))
    (ref / "latest_checkpointed_iteration.txt").write_text("0\n")
    (core / "__init__.py").write_text("one = 1\ntwo = 2\n")
    (data / "slime/train.py").write_text(TRAIN)
    (data / "slime/slime").mkdir()
    for name in ("megatron", "sglang"):
        (patches / f"{name}.patch").write_text(PATCH)
    for name in ("megatron_debug", "holdem_smoke"):
        (data / f"data/pokerbench_{name}.jsonl").write_text('{"instruction": "…", "output": "call"}\n')
    return ["--set", f"source={data}/slime", "--set", f"megatron={data}/megatron"]


@pytest.mark.slow
def test_the_stages_pass_in_their_order_and_a_lost_checkpoint_is_no_success(tmp_path: Path) -> None:
    for name in ("project", "data"):
        (tmp_path / name).mkdir()
    box = Box(project=tmp_path / "project", data=tmp_path / "data")
    result = box("run", "holdem", "--target", "local", "--place", "here", "--force", *lay(box.data))
    assert result.code == 0, result.err + result.out
    found = {stage["name"]: stage["state"] for stage in box.state()["stages"]}
    assert found == dict.fromkeys(("sources", "megatron-only", "sglang-only", "smoke"), "passed")
    rows = [json.loads(line) for line in (box.runs()[-1] / "metrics.jsonl").read_text().splitlines()]
    assert [(row["stage"], row["rollout"]) for row in rows] == [("sglang-only", 0), ("smoke", 0), ("smoke", 1)]
    train = box.data / "slime/train.py"
    train.write_text(train.read_text().replace("latest_checkpointed_iteration", "elsewhere"))
    shutil.rmtree(box.data / "exp")
    result = box("run", "--resume", box.runs()[-1].name, "--from", "smoke", "--force")
    assert result.code == 1
    assert "latest_checkpointed_iteration.txt" in result.err
