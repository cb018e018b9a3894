"""The hang card as `gkd`: the split of the GPUs, the checks, the phases, and the lines that tell where a run is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from gkd import check, tags, teacher
from jobplan import overrides, plan_of, settings_of, stage_of

from rlbox.spec.pattern import compile_re2

MODULE = "gkd.main"


def settings(profile: str = "", **given: str) -> dict[str, str]:
    return settings_of(overrides(stage_of(plan_of("gkd", profile, given), "train"), MODULE))


def test_the_split_and_the_limits_of_the_card() -> None:
    found = settings()
    assert (found["trainer.n_gpus_per_node"], found["rollout.n_gpus_per_node"]) == ("2", "1")
    assert settings("recommended")["rollout.n_gpus_per_node"] == "2"  # P123
    assert found["actor_rollout_ref.nccl_timeout"] == "600"
    assert settings("init-hang")["actor_rollout_ref.nccl_timeout"] == "900"
    assert settings("card")["rollout.n_gpus_per_node"] == "4"
    plan = plan_of("gkd")
    assert plan.env["NCCL_DEBUG"] == "TRACE"
    assert "NCCL_TIMEOUT" not in plan.env


def test_shrink_changes_the_gpus_alone() -> None:
    plain, small = settings(), settings("shrink")
    assert {key: small[key] for key in plain if plain[key] != small[key]} == {
        "trainer.n_gpus_per_node": "1",
    }


@pytest.mark.parametrize(
    ("actor", "rollout", "teacher_gpus", "visible", "problem"),
    [
        (2, 2, ["4"], 8, ""),
        (
            6,
            4,
            ["10"],
            8,
            "6 actor + 4 rollout + 1 teacher GPUs, 8 are visible: "
            "--set actor_gpus=2 --set rollout_gpus=2 --set gpus=0,1,2,3 --set teacher_gpus=4",
        ),
        (
            2,
            2,
            ["4"],
            4,
            "2 actor + 2 rollout + 1 teacher GPUs, 4 are visible: "
            "--set actor_gpus=1 --set rollout_gpus=1 --set gpus=0,1 --set teacher_gpus=2",
        ),
        (
            1,
            1,
            ["2"],
            2,
            "1 actor + 1 rollout + 1 teacher GPUs, 2 are visible: a machine with more GPUs, or smaller models",
        ),
        (2, 2, ["3"], 8, "teacher GPU 3 is one of the 4 that actor and rollout take"),
        (1, 1, ["9"], 8, "teacher_gpus names GPU 9, the node has 0 to 7"),
    ],
)
def test_gpu_split(actor: int, rollout: int, teacher_gpus: list[str], visible: int, problem: str) -> None:
    assert check.split_problem(actor, rollout, teacher_gpus, visible) == problem


def test_interface_data_and_library(tmp_path: Path) -> None:
    assert check.interface_problem("") == check.interface_problem("lo") == ""
    routes = "Iface\tDestination\tGateway\ndocker0\t000011AC\t0\neth7\t00000000\t0100000A\n"
    assert check.interface_problem("nope0", routes) == "there is no interface nope0: --set interface=eth7"
    assert "is missing" in check.data_problem(tmp_path / "none.parquet")
    assert "no main_gkd.py" in check.library_problem(tmp_path, tmp_path)
    (tmp_path / "main_gkd.py").touch()
    registry = tmp_path / "verl/workers/rollout/base.py"
    registry.parent.mkdir(parents=True)
    registry.write_text('("vllm", "async"): ...')
    assert "no verl with synchronous rollouts" in check.library_problem(tmp_path, tmp_path)
    registry.write_text('("vllm", "sync"): ...')
    assert check.library_problem(tmp_path, tmp_path) == ""


class Trainer:
    """The steps of the recipe's trainer that are tagged."""

    global_steps = 3

    def __init__(self) -> None:
        self.actor_wg: Any = type("Group", (), {"update_actor": lambda self, batch: f"updated {batch}"})()

    def init_workers(self) -> None:
        """Load."""

    def sync_rollout_weights(self) -> str:
        return "synced"

    def _async_gen_next_batch(self, epoch: int, batch: str, sync_before_generation: bool = True) -> str:
        if sync_before_generation:
            self.sync_rollout_weights()
        return f"future of {batch}"

    def _async_get_teacher_knowledge(self, future: str) -> str:
        return f"{future}, asked"


def test_a_run_tells_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = tags.tagged(Trainer)()
    trainer.init_workers()
    future = trainer._async_gen_next_batch(0, "a")
    assert trainer._async_get_teacher_knowledge(future) == "future of a, asked"
    assert trainer.actor_wg.update_actor("b") == "updated b"
    lines = capsys.readouterr().out.splitlines()
    told = [re.sub(r" after [\d.]+ s$", "", line) for line in lines]
    assert told == [
        *(
            "[ROLLOUT] init_model START",
            "[ACTOR] init_model START",
            "[ACTOR] init_model END",
            "[ROLLOUT] init_model END",
        ),
        *("[SYNC] Waiting for rollout", "[SYNC] weights to the rollout workers START"),
        *("[SYNC] weights to the rollout workers END", "[ROLLOUT] step 3: generation is under way"),
        *("[ROLLOUT] step 3: generated; the teacher is asked", "[ACTOR] update START", "[ACTOR] update END"),
    ]
    stage = stage_of(plan_of("gkd"), "train")
    for rule in stage.require:
        assert any(compile_re2(rule.pattern).search(line) for line in lines), rule.pattern


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("(TaskRunner pid=133947) Generating train split: 0 examples [00:00, ? examples/s]", "data"),
        ("[ACTOR] init_model START", "init-model"),
        ("[SYNC] Waiting for rollout", "weight-sync"),
        ("Loading tokenizer", ""),
    ],
)
def test_phases_are_those_of_the_card(line: str, phase: str) -> None:
    phases = stage_of(plan_of("gkd"), "train").phases
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
    rules = stage_of(plan_of("gkd"), "train").forbid
    assert any(compile_re2(rule.pattern).search(line) for rule in rules) == forbidden


class Engine:
    """What answers in the teacher."""

    def get_topk_logprobs(self, ids: list[list[int]], temperature: float, **named: Any) -> tuple[Any, Any, Any]:
        if not ids:
            raise RuntimeError("nothing to say")
        return ids, temperature, named


def test_the_teacher_answers_whatever_happens() -> None:
    good = teacher.answer(Engine(), {"prompt_token_ids": [[1, 2]], "max_tokens": 1, "temperature": 1})
    assert (good["status"], good["responses"], good["teacher_topk_logprobs"]) == ("ok", [[1, 2]], 1)
    assert teacher.answer(Engine(), {"prompt_token_ids": []}) == {
        "status": "error",
        "reason": "Generate failed: nothing to say",
    }
    assert teacher.answer(Engine(), "hello")["status"] == "error"
