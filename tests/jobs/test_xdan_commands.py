"""The commands of `xdan`, read with the options of the OpenRLHF that they are pinned to."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobplan import plan_of, stage_of
from optionbox import parser_of, read

VERSION = "0.10.4"
OPTIONS = Path(__file__).with_name(f"openrlhf-{VERSION}-options.txt")
PROFILES = ("", "two-nodes", "all-gpus", "one-node")
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
