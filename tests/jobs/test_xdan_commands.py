"""The commands of `xdan`, read with the options of the OpenRLHF that they are pinned to."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import CHECKOUT
from jobplan import plan_of, stage_of
from optionbox import parser_of, read

from rlbox.job.load import load_job
from rlbox.job.resume import plan_resume
from rlbox.spec.project import Project

VERSION = "0.8.2"
OPTIONS = Path(__file__).with_name(f"openrlhf-{VERSION}-options.txt")
PROFILES = ("", "two-nodes", "all-gpus", "one-node")
# Seed 001, section 4, in its order.
SEED = {
    "ref_num_nodes": 2, "ref_num_gpus_per_node": 4, "actor_num_nodes": 2, "actor_num_gpus_per_node": 4,
    "vllm_num_engines": 2, "vllm_tensor_parallel_size": 4, "colocate_all_models": True, "vllm_enable_sleep": True,
    "vllm_gpu_memory_utilization": 0.85, "vllm_sync_backend": "gloo", "enable_prefix_caching": True,
    "pretrain": "/data/models/xDAN-L2-Qwen25-32b-Instruct", "micro_train_batch_size": 2, "train_batch_size": 128,
    "micro_rollout_batch_size": 4, "rollout_batch_size": 256, "temperature": 1.0, "n_samples_per_prompt": 8,
    "max_epochs": 1, "num_episodes": 30, "prompt_max_len": 4096, "max_samples": 100000, "generate_max_len": 4096,
    "advantage_estimator": "rloo", "zero_stage": 3, "adam_offload": True, "bf16": True, "actor_learning_rate": 5e-7,
    "init_kl_coef": 0.02, "input_key": "message", "normalize_reward": True, "flash_attn": True,
    "gradient_checkpointing": True, "save_steps": 10, "save_hf_ckpt": True,
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
source = open(sys.argv[1]).read().replace("    train(args)", "    print(args.remote_rm_url, args.critic_pretrain)")
sys.argv = ["train_ppo_ray", *sys.argv[2:]]
exec(compile(source, "train_ppo_ray.py", "exec"), {"__name__": "__main__"})
"""


def words(profile: str, more: tuple[str, ...] = ()) -> list[str]:
    argv = stage_of(plan_of("xdan", profile), "train").argv
    assert argv[:3] == ("python", "-m", "openrlhf.cli.train_ppo_ray")
    return [*argv[3:], *more]


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return parser_of(OPTIONS)


def test_the_values_are_those_of_the_seed(parser: argparse.ArgumentParser) -> None:
    found = read(parser, words("two-nodes"))
    assert {name: getattr(found, name) for name in SEED} == SEED
    assert found.remote_rm_url == "http://gpu005:5001/get_reward"  # loopback serves one node alone (P065)
    assert (found.save_path, found.ckpt_path) == (
        "/data/xDAN-RL-Training-GRPO/ckpts/xDAN-L2-RL-32B-Instruct",
        "/data/xDAN-RL-Training-GRPO/ckpts/xDAN-L2-RL-32B-Instruct/ckpt",
    )


@pytest.mark.parametrize("profile", [*PROFILES, "smoke"])
def test_the_arithmetic_of_every_profile_holds(parser: argparse.ArgumentParser, profile: str) -> None:
    found = read(parser, words(profile))
    actors = found.actor_num_nodes * found.actor_num_gpus_per_node
    assert actors == found.vllm_num_engines * found.vllm_tensor_parallel_size
    assert (found.ref_num_nodes, found.ref_num_gpus_per_node) == (found.actor_num_nodes, found.actor_num_gpus_per_node)
    assert found.train_batch_size % (found.micro_train_batch_size * actors) == 0
    assert found.rollout_batch_size * found.n_samples_per_prompt // found.micro_rollout_batch_size >= actors
    assert found.rollout_batch_size * found.n_samples_per_prompt % found.train_batch_size == 0


def test_the_defaults_differ_where_the_seed_does_not_fit(parser: argparse.ArgumentParser) -> None:
    found = read(parser, words(""))
    changed = {name: getattr(found, name) for name in SEED if getattr(found, name) != SEED[name]}
    assert changed == {
        "ref_num_gpus_per_node": 8,
        "actor_num_gpus_per_node": 8,
        "vllm_num_engines": 4,
        "save_hf_ckpt": False,
    }
    assert (found.max_ckpt_num, read(parser, words("two-nodes")).max_ckpt_num) == (2, 3)


def test_ports_are_the_seeds_and_stand_in_one_place() -> None:
    plan = plan_of("xdan")
    ray, reward = stage_of(plan, "train").services
    assert {"--port=8100", "--dashboard-port=8101", "--ray-client-server-port=8102"} <= set(ray.argv)
    assert reward.argv[-4:] == ("--host", "0.0.0.0", "--port", "5001")
    assert (ray.keep, reward.keep) == (True, True)


def test_a_run_that_is_taken_up_again_loads_its_checkpoint(parser: argparse.ArgumentParser) -> None:
    again = plan_resume(load_job(Project(folder=CHECKOUT), "xdan"), plan_of("xdan"), {"train": 2})
    assert read(parser, list(stage_of(again, "train").argv[3:])).load_checkpoint is True
    assert read(parser, words("")).load_checkpoint is False


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
