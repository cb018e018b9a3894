"""The commands of `holdem`, read with the options of the slime, Megatron and SGLang that they are pinned to."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from fakes import CHECKOUT, Folder
from jobplan import plan_of, stage_of
from optionbox import Refused, parser_of, read

from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.job.load import load_job
from rlbox.job.plan import RunPlan, StagePlan
from rlbox.job.resume import plan_resume
from rlbox.target.target import load_target

OPTIONS = Path(__file__).with_name("slime-0.3.1-options.txt")
PROFILES = ("", "smoke", "full", "resume")
# Seed 000, table of section 5 and the commands of 7.3 and 10; the fork's script for what the seed does not set.
SMOKE = {
    "rollout_num_gpus_per_engine": 2,
    "max_tokens_per_gpu": 6144,
    "sglang_mem_fraction_static": 0.45,
    "sglang_server_concurrency": 96,
    "dynamic_sampling_filter_path": None,
    "partial_rollout": False,
    "over_sampling_batch_size": 8,
    "hf_checkpoint": "/data/models/poker-qwen3-8b-merged",
    "ref_load": "/data/models/poker-qwen3-8b-merged",
    "prompt_data": "/data/data/pokerbench_holdem_smoke.jsonl",
    "save": "/data/exp/holdem_smoke_beijing",
    "num_rollout": 2,
    "global_batch_size": 8,
}
FULL = {
    "rollout_num_gpus_per_engine": 2,
    "sglang_mem_fraction_static": 0.70,
    "sglang_server_concurrency": 128,
    "dynamic_sampling_filter_path": "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
    "partial_rollout": True,
    "num_rollout": 50,
    "save": "/data/exp/holdem_full50_beijing",
    "global_batch_size": 128,
    "prompt_data": "/data/data/pokerbench_train.jsonl",
    "no_load_optim": False,
}


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return parser_of(OPTIONS)


def options(parser: argparse.ArgumentParser, stage: StagePlan) -> argparse.Namespace:
    assert stage.argv[:2] == ("python", "/opt/slime/train.py")
    return read(parser, list(stage.argv[2:]))


def subset(found: argparse.Namespace, wanted: dict[str, object]) -> dict[str, object]:
    return {name: getattr(found, name) for name in wanted}


@pytest.mark.parametrize("profile", PROFILES)
def test_every_command_is_read(parser: argparse.ArgumentParser, profile: str) -> None:
    for stage in plan_of("holdem", profile).stages[1:]:
        found = options(parser, stage)
        assert found.num_layers == 36
        assert found.actor_num_gpus_per_node % (found.rollout_num_gpus_per_engine or 1) == 0
        assert (found.rollout_batch_size * found.n_samples_per_prompt) % found.global_batch_size == 0
        assert (found.over_sampling_batch_size or found.rollout_batch_size) >= found.rollout_batch_size
        assert found.rollout_max_prompt_len < found.rollout_max_context_len


def test_the_order_is_that_of_the_manual() -> None:
    three = ["sources", "megatron-only", "sglang-only", "smoke"]
    assert [stage.name for stage in plan_of("holdem").stages] == three
    assert [stage.name for stage in plan_of("holdem", "full").stages] == [*three, "full"]
    assert [stage.name for stage in plan_of("holdem", "resume").stages] == [*three, "resume"]


def test_each_half_runs_alone(parser: argparse.ArgumentParser) -> None:
    plan = plan_of("holdem")
    trains, rolls = (options(parser, stage_of(plan, name)) for name in ("megatron-only", "sglang-only"))
    assert (trains.debug_train_only, trains.debug_rollout_only, trains.colocate) == (True, False, False)
    assert (rolls.debug_train_only, rolls.debug_rollout_only) == (False, True)
    assert rolls.custom_generate_function_path == "holdem.plugin.generate"
    assert rolls.custom_rm_path == "holdem.plugin.reward"


def test_smoke_has_the_values_of_the_seed(parser: argparse.ArgumentParser) -> None:
    assert subset(options(parser, stage_of(plan_of("holdem"), "smoke")), SMOKE) == SMOKE


def test_full_differs_from_smoke_in_what_the_seed_says(parser: argparse.ArgumentParser) -> None:
    found = options(parser, stage_of(plan_of("holdem", "full"), "full"))
    assert subset(found, FULL) == FULL
    assert found.load is None
    assert found.rollout_batch_size * found.n_samples_per_prompt == found.global_batch_size


def test_weights_only_is_for_those_who_resume(parser: argparse.ArgumentParser) -> None:
    found = options(parser, stage_of(plan_of("holdem", "resume"), "resume"))
    assert (found.load, found.no_load_optim, found.no_load_rng) == ("/data/exp/holdem_full50_beijing", True, True)
    stage = stage_of(plan_of("holdem", "resume"), "resume")
    assert [need.path for need in stage.needs] == ["/data/exp/holdem_full50_beijing/latest_checkpointed_iteration.txt"]


def test_a_run_that_is_taken_up_again_loads_and_says_what_is_lost(parser: argparse.ArgumentParser) -> None:
    job = load_job(Project(folder=CHECKOUT), "holdem")
    before: RunPlan = plan_of("holdem", "full")
    again = plan_resume(job, before, {"full": 2})
    found = options(parser, stage_of(again, "full"))
    assert (found.load, found.no_load_optim, found.no_load_rng) == ("/data/exp/holdem_full50_beijing", True, True)
    assert any("momentum" in note for note in again.notes)
    assert [stage.name for stage in again.stages] == [stage.name for stage in before.stages]


def test_a_misspelt_option_is_refused(parser: argparse.ArgumentParser) -> None:
    words = [*stage_of(plan_of("holdem"), "smoke").argv[2:], "--sglang-mem-frac", "0.5"]
    with pytest.raises(Refused, match="unrecognized arguments"):
        read(parser, words)


def test_the_target_has_the_versions_that_the_commands_are_for() -> None:
    target = load_target(Project(folder=CHECKOUT), load_job(Project(folder=CHECKOUT), "holdem").target).target
    refs = {tree.name: tree.ref for tree in target.git}
    assert refs["slime"] == "v0.3.1"
    assert refs["megatron-lm"].startswith("1dcf0da")
    paths = {tree.name: tree.into for tree in target.git}
    env = plan_of("holdem").env["PYTHONPATH"].split(":")
    assert {paths["slime"], paths["megatron-lm"]} <= set(env)


def test_a_stage_of_an_unknown_profile_is_refused(folder: Folder) -> None:
    text = (
        'title = "t"\ntarget = "local"\n[[stages]]\nname = "a"\ntitle = "t"\ncommand = ["true"]\nprofiles = ["ful"]\n'
    )
    folder.job("mine", text)
    with pytest.raises(SpecError, match=r"stages\.a\.profiles: unknown profile 'ful'"):
        load_job(folder.project, "mine")
