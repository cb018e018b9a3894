"""The commands of `holdem`, read with the options of the slime, Megatron and SGLang that they are pinned to."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from fakes import CHECKOUT, Folder
from jobplan import plan_of, stage_of
from optionbox import parser_of, read

from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.job.job import load_job
from rlbox.job.plan import RunPlan, StagePlan, replan_stages_for_resume
from rlbox.target.target import load_target

OPTIONS = Path(__file__).with_name("slime-0.3.1-options.txt.xz")
PROFILES = ("", "smoke", "full", "resume")


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return parser_of(OPTIONS)


def options(parser: argparse.ArgumentParser, stage: StagePlan) -> argparse.Namespace:
    assert stage.argv[:2] == ("python", "/opt/slime/train.py")
    return read(parser, list(stage.argv[2:]))


@pytest.mark.parametrize("profile", PROFILES)
def test_every_command_is_read(parser: argparse.ArgumentParser, profile: str) -> None:
    for stage in plan_of("holdem", profile).stages[1:]:
        found = options(parser, stage)
        assert found.num_layers == 36
        assert found.actor_num_gpus_per_node % (found.rollout_num_gpus_per_engine or 1) == 0
        assert (found.rollout_batch_size * found.n_samples_per_prompt) % found.global_batch_size == 0
        assert (found.over_sampling_batch_size or found.rollout_batch_size) >= found.rollout_batch_size
        assert found.rollout_max_prompt_len < found.rollout_max_context_len


def test_a_run_that_is_taken_up_again_loads_and_says_what_is_lost(parser: argparse.ArgumentParser) -> None:
    job = load_job(Project(folder=CHECKOUT), "holdem")
    before: RunPlan = plan_of("holdem", "full")
    again = replan_stages_for_resume(job, before, {"full": 2})
    found = options(parser, stage_of(again, "full"))
    assert (found.load, found.no_load_optim, found.no_load_rng) == ("/data/exp/holdem_full50_beijing", True, True)
    assert any("momentum" in note for note in again.notes)
    assert [stage.name for stage in again.stages] == [stage.name for stage in before.stages]


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
