"""The note on runs that stand still as `gkd`: the split of the GPUs, the checks, the phases, the forbidden lines."""

from __future__ import annotations

import pytest
from gkd import check
from jobplan import plan_of, stage_of

from rlbox.config.pattern import compile_re2


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
