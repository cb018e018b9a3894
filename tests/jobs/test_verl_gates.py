"""The gates of `sft`, `grpo` and `gkd` on logs in verl's words: whole, with one thing missing, with one too many."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from gatebox import Verdict, judge
from jobplan import plan_of, stage_of

from rlbox.job.plan import ProcessPaths

OOM = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has 31.36 GiB"
NCCL = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77, unhandled cuda error"
HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
WEIGHTS = (struct.pack("<Q", len(HEADER)) + HEADER + bytes(4)).hex()


def sft_line(step: int, loss: float) -> str:
    """One line of verl's console logger, as 0.9.1 wrote it on a CPU."""
    return (
        f"step:{step} - perf/max_memory_allocated_gb:0.0 - train/loss:{loss} - train/grad_norm:7.56 - "
        "train/lr:0.0009 - train/mfu:0.0 - train/global_tokens:730 - train/total_tokens(B):7.3e-07"
    )


def smoke_log(losses: list[float]) -> list[str]:
    steps = [sft_line(step, loss) for step, loss in enumerate(losses, start=1)]
    ends = ["  [PASS] HF model checkpoint found", "Smoke test passed! Ready for full training."]
    return ["Phase 1 SFT - Smoke Test", "  1 GPU, 10 steps", *steps, *ends]


def exports(folder: str, *steps: int) -> dict[str, Any]:
    where = f"phase_1_ SFT/checkpoints/rlvr_coding_model/{folder}"
    configs = {f"{where}/global_step_{step}/huggingface/config.json": {"text": "{}"} for step in steps}
    return configs | {f"{where}/global_step_{step}/huggingface/model.safetensors": {"hex": WEIGHTS} for step in steps}


def verdict(job: str, stage: str, run: Path, lines: list[str], files: dict[str, Any]) -> Verdict:
    paths = ProcessPaths(run=str(run), job=str(run / "job"), data=str(run), python="python")
    case = {"logs": {"stage": "\n".join(lines) + "\n"}, "files": files}
    return judge(case, run, stage=stage_of(plan_of(job, paths=paths), stage))


FALLING = [2.6 - 0.1 * step for step in range(10)]
SMOKE = exports("phase1_sft_smoke", 5, 10)


def test_a_good_smoke_test_passes(tmp_path: Path) -> None:
    warning = "UserWarning: set ignore_input_ids_mismatch=True to ignore it: ERROR of the chat template"
    found = verdict("sft", "smoke", tmp_path, [warning, *smoke_log(FALLING)], SMOKE)  # P172
    assert found.passed, found.text


@pytest.mark.parametrize(
    ("lines", "files", "kind", "shows"),
    [
        (smoke_log([2.5] * 10), SMOKE, "metric", "train/loss"),
        (smoke_log([*FALLING[:9], float("nan")]), SMOKE, "metric", "train/loss"),
        (smoke_log(FALLING), exports("phase1_sft_smoke", 10), "file", "global_step_5"),
        (smoke_log(FALLING)[:-1], SMOKE, "require", "Smoke test passed"),
        ([line for line in smoke_log(FALLING) if "PASS" not in line], SMOKE, "require", "PASS"),
        ([line.replace("grad_norm", "norm") for line in smoke_log(FALLING)], SMOKE, "require", "grad_norm"),
        ([*smoke_log(FALLING)[:5], OOM], SMOKE, "forbid", "OutOfMemoryError"),
        ([*smoke_log(FALLING)[:5], NCCL], SMOKE, "forbid", "NCCL error"),
    ],
)
def test_each_item_of_the_smoke_checklist(
    lines: list[str], files: dict[str, Any], kind: str, shows: str, tmp_path: Path
) -> None:
    found = verdict("sft", "smoke", tmp_path, lines, files)
    assert (found.passed, found.kind) == (False, kind), found.text
    assert shows in found.text


def training(losses: list[float]) -> list[str]:
    steps = [sft_line(step, loss) for step, loss in enumerate(losses, start=1)]
    return [*steps, f"step:{len(losses)} - val/loss:1.25", "  [PASS] HF model checkpoint found"]


def test_training_must_begin_to_learn_and_may_over_fit(tmp_path: Path) -> None:
    files = {"exports.json": {"text": '{"100": "a"}'}}
    good = verdict("sft", "train", tmp_path / "a", training([2.6 - 0.05 * step for step in range(25)]), files)
    assert good.passed, good.text
    resumed = verdict("sft", "train", tmp_path / "b", [sft_line(378, 0.4), *training([0.4])], files)
    assert resumed.passed, resumed.text
    level = "[FAIL] train/loss does not fall within 20 steps: 2.500 to 2.500; look at the learning rate and the data"
    flat = verdict("sft", "train", tmp_path / "c", [level, *training([2.5] * 25)], files)
    assert (flat.passed, flat.kind) == (False, "forbid")
    assert verdict("sft", "train", tmp_path / "d", training([2.5] * 5), {}).kind == "file"


def grpo_line(step: int) -> str:
    return (
        f"step:{step} - global_seqlen/min:80 - actor/pg_loss:np.float64(-0.01) - actor/grad_norm:np.float64(0.8) - "
        "training/rollout_probs_diff_mean:0.0002 - critic/score/mean:0.25 - critic/rewards/mean:0.25"
    )


def test_grpo(tmp_path: Path) -> None:
    good = verdict("grpo", "train", tmp_path / "a", [f"(TaskRunner pid=7) {grpo_line(n)}" for n in (1, 2)], {})
    assert good.passed, good.text
    for number, line in enumerate(
        (
            OOM,
            "(vLLMHttpServer pid=1) ValueError: Backend TORCH_SDPA must be registered before use.",
            "AttributeError: 'AsyncEngineArgs' object has no attribute 'disable_log_requests'",
            "/usr/bin/ld: cannot find -lcuda: No such file or directory",
            "OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2",
        )
    ):
        found = verdict("grpo", "train", tmp_path / str(number), [line, grpo_line(1)], {})
        assert (found.passed, found.kind) == (False, "forbid"), line
    empty = verdict("grpo", "train", tmp_path / "c", ["Total training steps: 2"], {})
    assert not empty.passed


def gkd_line(step: int) -> str:
    return (
        f"(TaskRunner pid=1) step:{step} - distillation/loss:{0.9 - 0.1 * step} - actor/grad_norm:1.3 - "
        "training/rollout_probs_diff_mean:0.0002"
    )


GKD = [
    "(TaskRunner pid=1) Size of train dataloader: 8, Size of val dataloader: 1",
    "(TaskRunner pid=1) Total training steps: 4",
    "(TaskRunner pid=1) Training Progress:   0%|          | 0/4 [00:00<?, ?it/s]",
    *map(gkd_line, range(1, 5)),
]
CHECKPOINT = {"checkpoints/latest_checkpointed_iteration.txt": {"text": "4"}}


def test_the_checklist_of_the_card(tmp_path: Path) -> None:
    noise = [
        "node1:1:1 [0] NCCL INFO Failed to open libibverbs.so",
        "(TaskRunner pid=1) Exception ignored in atexit callback: <function dump_compile_times at 0x7f>",
    ]
    good = verdict("gkd", "distill", tmp_path / "good", [*noise, *GKD], CHECKPOINT)
    assert good.passed, good.text
    still = verdict("gkd", "distill", tmp_path / "still", GKD[:3], CHECKPOINT)
    assert not still.passed
    assert verdict("gkd", "distill", tmp_path / "none", GKD, {}).kind == "file"
    bad = ("2026-01-11 ERROR worker died", "Watchdog TIMEOUT", "Exception in thread", OOM, "卡死", "超时")
    for number, line in enumerate(bad):
        found = verdict("gkd", "distill", tmp_path / f"bad{number}", [GKD[0], line, *GKD[1:]], CHECKPOINT)
        assert (found.passed, found.kind) == (False, "forbid"), line
