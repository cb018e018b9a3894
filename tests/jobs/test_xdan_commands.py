"""The commands of `xdan`, read with the options of the OpenRLHF that they are pinned to."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT
from jobplan import plan_of, stage_of
from optionbox import parser_of, read

from rlbox.config.project import Project
from rlbox.job.load import load_job
from rlbox.job.resume import plan_resume

VERSION = "0.10.4"
OPTIONS = Path(__file__).with_name(f"openrlhf-{VERSION}-options.txt")
PROFILES = ("", "two-nodes", "all-gpus", "one-node")
# The note's values, in its order, by the names of this OpenRLHF.
SEED = {
    "ref.num_nodes": 2, "ref.num_gpus_per_node": 4, "actor.num_nodes": 2, "actor.num_gpus_per_node": 4,
    "vllm.num_engines": 2, "vllm.tensor_parallel_size": 4, "train.colocate_all": True, "vllm.enable_sleep": True,
    "vllm.gpu_memory_utilization": 0.85, "vllm.sync_backend": "gloo", "vllm.enable_prefix_caching": True,
    "actor.model_name_or_path": "/data/models/xDAN-L2-Qwen25-32b-Instruct", "train.micro_batch_size": 2,
    "train.batch_size": 128, "rollout.micro_batch_size": 4, "rollout.batch_size": 256, "rollout.temperature": 1.0,
    "rollout.n_samples_per_prompt": 8, "train.max_epochs": 1, "train.num_episodes": 30, "data.max_len": 8192,
    "data.max_samples": 100000, "rollout.max_new_tokens": 4096, "algo.advantage.estimator": "rloo", "ds.zero_stage": 3,
    "ds.adam_offload": True, "ds.param_dtype": "bf16", "actor.adam.lr": 5e-7, "algo.kl.init_coef": 0.02,
    "data.input_key": "message", "reward.normalize_enable": True, "ds.attn_implementation": "flash_attention_2",
    "actor.gradient_checkpointing_enable": True, "ckpt.save_steps": 10, "ckpt.save_hf": True,
}  # fmt: skip
# What the trainer's own module checks behind its parser: it runs with everything heavy left out.
CHECK = """
import sys, types
class Any(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        return types.SimpleNamespace
for name in ("ray", "ray.util", "ray.util.placement_group", "openrlhf", "openrlhf.trainer", "openrlhf.trainer.ray",
             "openrlhf.trainer.ray.launcher", "openrlhf.trainer.ray.ppo_actor", "openrlhf.trainer.ray.ppo_critic",
             "openrlhf.utils"):
    sys.modules[name] = Any(name)
sys.path.insert(0, sys.argv[1].removesuffix("cli/train_ppo_ray.py") + "utils")
import config
sys.modules["openrlhf.utils.config"] = config
shown = "    print(args.reward.remote_url, args.critic.model_name_or_path)"
source = open(sys.argv[1]).read().replace("    train(args)", shown)
sys.argv = ["train_ppo_ray", *sys.argv[2:]]
exec(compile(source, "train_ppo_ray.py", "exec"), {"__name__": "__main__"})
"""


def words(profile: str, settings: dict[str, str] | None = None) -> list[str]:
    argv = stage_of(plan_of("xdan", profile, settings), "train").argv
    assert argv[:3] == ("python", "-m", "openrlhf.cli.train_ppo_ray")
    return [*argv[3:]]


def options(parser: argparse.ArgumentParser, profile: str, settings: dict[str, str] | None = None) -> dict[str, Any]:
    return vars(read(parser, words(profile, settings)))


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return parser_of(OPTIONS)


def test_the_values_are_those_of_the_seed(parser: argparse.ArgumentParser) -> None:
    found = options(parser, "two-nodes", {"attention": "flash_attention_2", "sync_backend": "gloo"})
    assert {name: found[name] for name in SEED} == SEED
    assert found["reward.remote_url"] == "http://gpu005:5001/get_reward"  # loopback serves one node alone
    assert (found["ckpt.output_dir"], found["ckpt.path"]) == (
        "/data/xDAN-RL-Training-GRPO/ckpts/xDAN-L2-RL-32B-Instruct",
        "/data/xDAN-RL-Training-GRPO/ckpts/xDAN-L2-RL-32B-Instruct/ckpt",
    )


@pytest.mark.parametrize("profile", [*PROFILES, "smoke", "tiny"])
def test_the_arithmetic_of_every_profile_holds(parser: argparse.ArgumentParser, profile: str) -> None:
    found = options(parser, profile)
    actors = found["actor.num_nodes"] * found["actor.num_gpus_per_node"]
    answers = found["rollout.batch_size"] * found["rollout.n_samples_per_prompt"]
    assert actors == found["vllm.num_engines"] * found["vllm.tensor_parallel_size"]
    assert found["ref.num_nodes"] == found["actor.num_nodes"]
    assert found["ref.num_gpus_per_node"] == found["actor.num_gpus_per_node"]
    assert found["train.batch_size"] % (found["train.micro_batch_size"] * actors) == 0
    assert answers // found["rollout.micro_batch_size"] >= actors
    assert answers % found["train.batch_size"] == 0


def test_the_defaults_differ_where_the_seed_does_not_fit(parser: argparse.ArgumentParser) -> None:
    found = options(parser, "")
    changed = {name: found[name] for name in SEED if found[name] != SEED[name]}
    assert changed == {
        "ref.num_gpus_per_node": 8,
        "actor.num_gpus_per_node": 8,
        "vllm.num_engines": 4,
        "vllm.sync_backend": "nccl",
        "ds.attn_implementation": "sdpa",  # the target has no flash-attn
        "ckpt.save_hf": False,
    }
    assert (found["ckpt.max_num"], options(parser, "two-nodes")["ckpt.max_num"]) == (2, 3)


def test_weights_that_do_not_arrive_are_seen(parser: argparse.ArgumentParser) -> None:
    """OpenRLHF prints `vllm_kl` then, and the stage `gap` reads it."""
    assert options(parser, "")["algo.advantage.is_correction_enable"] is True
    assert plan_of("xdan").stages[-1].name == "gap"


def test_ports_are_the_seeds_and_stand_in_one_place() -> None:
    plan = plan_of("xdan")
    ray, reward = stage_of(plan, "train").services
    assert {"--port=8100", "--dashboard-port=8101", "--ray-client-server-port=8102"} <= set(ray.argv)
    assert reward.argv[-4:] == ("--host", "0.0.0.0", "--port", "5001")
    assert (ray.keep, reward.keep) == (True, True)


def test_a_run_that_is_taken_up_again_loads_its_checkpoint(parser: argparse.ArgumentParser) -> None:
    again = plan_resume(load_job(Project(folder=CHECKOUT), "xdan"), plan_of("xdan"), {"train": 2})
    assert vars(read(parser, list(stage_of(again, "train").argv[3:])))["ckpt.load_enable"] is True
    assert options(parser, "")["ckpt.load_enable"] is False


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_the_pinned_wheel_takes_the_command(tmp_path_factory: pytest.TempPathFactory, profile: str) -> None:
    folder = tmp_path_factory.getbasetemp() / f"openrlhf-{VERSION}"
    uv = Path(sys.executable).with_name("uv")
    argv = (uv, "pip", "install", "--quiet", "--no-deps", "--target", folder, f"openrlhf=={VERSION}")
    if not folder.is_dir():
        subprocess.run((*argv, "--python-version", "3.11", "--only-binary", ":all:"), check=True, timeout=300)
    program = folder / "openrlhf/cli/train_ppo_ray.py"
    ended = subprocess.run(
        (sys.executable, "-c", CHECK, program, *words(profile)), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "get_reward" in ended.stdout
    assert "None" in ended.stdout  # RLOO has no critic
