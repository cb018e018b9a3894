"""The note on runs that stand still as `gkd`: the split of the GPUs, the checks, the phases, the forbidden lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from gkd import check
from jobplan import overrides, plan_of, settings_of, stage_of

from rlbox.config.pattern import compile_re2

MODULE = "verl.trainer.main_ppo"
TEACHER = "distillation.teacher_models.teacher_model.inference"


def settings(profile: str = "", **given: str) -> dict[str, str]:
    return settings_of(overrides(stage_of(plan_of("gkd", profile, given), "distill"), MODULE))


def test_the_split_and_the_limits_of_the_card() -> None:
    found = settings()
    assert (found["trainer.n_gpus_per_node"], found["distillation.n_gpus_per_node"]) == ("2", "2")
    assert found[f"{TEACHER}.tensor_model_parallel_size"] == "2"
    assert found["actor_rollout_ref.nccl_timeout"] == "600"
    assert settings("init-hang")["actor_rollout_ref.nccl_timeout"] == "900"
    plan = plan_of("gkd")
    assert plan.env["NCCL_DEBUG"] == "TRACE"
    assert "NCCL_TIMEOUT" not in plan.env


def test_shrink_changes_the_gpus_alone() -> None:
    plain, small = settings(), settings("shrink")
    assert {key: small[key] for key in plain if plain[key] != small[key]} == {
        "trainer.n_gpus_per_node": "1",
        "distillation.n_gpus_per_node": "1",
        f"{TEACHER}.tensor_model_parallel_size": "1",
    }


@pytest.mark.parametrize(
    ("actor", "teacher", "visible", "problem"),
    [
        (2, 2, 4, ""),
        (2, 2, 8, ""),
        (
            6,
            4,
            8,
            "6 actor + 4 teacher GPUs, 8 are visible: --set actor_gpus=4 --set teacher_gpus=4",
        ),
        (2, 2, 3, "2 actor + 2 teacher GPUs, 3 are visible: --set actor_gpus=1 --set teacher_gpus=1"),
        (1, 1, 1, "1 actor + 1 teacher GPUs, 1 are visible: a machine with two GPUs"),
    ],
)
def test_gpu_split(actor: int, teacher: int, visible: int, problem: str) -> None:
    assert check.split_problem(actor, teacher, visible) == problem


def test_interface_and_data(tmp_path: Path) -> None:
    assert check.interface_problem("") == check.interface_problem("lo") == ""
    routes = "Iface\tDestination\tGateway\ndocker0\t000011AC\t0\neth7\t00000000\t0100000A\n"
    assert check.interface_problem("nope0", routes) == "there is no interface nope0: --set interface=eth7"
    assert "is missing" in check.data_problem(tmp_path / "none.parquet")


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("(TaskRunner pid=133947) Generating train split: 0 examples [00:00, ? examples/s]", "data"),
        ("(TaskRunner pid=7433) Total training steps: 16", "init-model"),
        ("(TaskRunner pid=7433) Training Progress:   0%|          | 0/16 [00:00<?, ?it/s]", "steps"),
        ("Loading tokenizer", ""),
    ],
)
def test_phases_are_those_of_the_card(line: str, phase: str) -> None:
    phases = stage_of(plan_of("gkd"), "distill").phases
    found = [p.name for p in phases if any(compile_re2(begins).search(line) for begins in p.begins)]
    assert found == ([phase] if phase else [])
    assert all(p.silence_s >= 600 for p in phases)


@pytest.mark.parametrize(
    ("line", "forbidden"),
    [
        ("ERROR: worker died", True),
        ("ValueError raised, Exception in step", True),
        ("卡死 了", True),
        ("连接超时", True),
        ("Loading tokenizer", False),
        ("actor_rollout_ref.nccl_timeout: 600", False),
    ],
)
def test_the_log_checklist(line: str, forbidden: bool) -> None:
    rules = stage_of(plan_of("gkd"), "distill").forbid
    assert any(compile_re2(rule.pattern).search(line) for rule in rules) == forbidden
