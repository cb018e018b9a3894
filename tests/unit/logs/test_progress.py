"""Progress, rates and bars in the lines of known trainers and servers."""

from __future__ import annotations

import pytest

from rlbox.logs.progress import (
    ProgressBar,
    ProgressReading,
    estimate_remaining_s,
    find_last_nonstep_bar_unless_full,
    find_progress_candidates,
    merge_readings,
    parse_bar_not_counting_steps,
    parse_metrics_record,
    parse_progress_line,
    select_ranked_metrics,
)

VERL = (
    "\x1b[36m(TaskRunner pid=9323)\x1b[0m step:102 - actor/pg_loss:0.100 - critic/rewards/mean:0.235"
    " - timing_s/step:80.0 - perf/throughput:298.347"
)
VLLM = (
    "(APIServer pid=155) INFO 11-28 15:31:06 [loggers.py:236] Engine 000: Avg prompt throughput: 40.7 tokens/s, "
    "Avg generation throughput: 104.5 tokens/s, Running: 1 reqs"
)
SGLANG = "[TP0] Decode batch. #running-req: 1, token usage: 0.00, gen throughput (token/s): 120.5, #queue-req: 0"
TRL = " 31%|███▏      | 50/160 [21:49<53:16, 20.0s/it]{'loss': 0.6922, 'grad_norm': 0.34, 'rewards/chosen': 0.002}"
MEGATRON = (
    " [2026-01-01 00:00:00] iteration       10/     100 | consumed samples:         1280 | elapsed time per iteration"
    " (ms): 2000.0 | global batch size:   128 | lm loss: 1.23E+00 | grad norm: 0.5 |"
)
SLIME = "(RolloutManager pid=1) rollout 3: {'rollout/raw_reward': 0.5, 'rollout/response_lengths': 300.0}"
SLIME_PERF = "perf 3: {'perf/tokens_per_gpu_per_sec': 500.0, 'perf/step_time': 20.0}"
OPENRLHF = "2026-01-01 INFO ✨ Global step 4: {'policy_loss': 0.1, 'reward': 0.3, 'timing/step_total': 10.0}"
OPENRLHF_BAR = "Episode [1/1]:   5%|▌  | 3/60 [00:10<03:00, 2.00s/it, policy_loss=0.5, reward=-1.5e-1]"


@pytest.mark.parametrize(
    ("line", "step", "total", "rates", "metrics"),
    [
        (VERL, 102, 0, {"tokens/s per GPU": 298.347, "steps/s": 1 / 80}, {"critic/rewards/mean": 0.235}),
        (VLLM, None, 0, {"tokens/s in": 40.7, "tokens/s out": 104.5}, {}),
        (SGLANG, None, 0, {"tokens/s out": 120.5}, {}),
        (TRL, 50, 160, {"steps/s": 1 / 20}, {"loss": 0.6922, "rewards/chosen": 0.002}),
        (MEGATRON, 10, 100, {"steps/s": 0.5, "samples/s": 64.0}, {"lm loss": 1.23, "grad norm": 0.5}),
        (SLIME, 3, 0, {}, {"rollout/raw_reward": 0.5}),
        (SLIME_PERF, 3, 0, {"tokens/s per GPU": 500.0, "steps/s": 1 / 20}, {}),
        (OPENRLHF, 4, 0, {"steps/s": 0.1}, {"policy_loss": 0.1, "reward": 0.3}),
        (OPENRLHF_BAR, 3, 60, {"steps/s": 0.5}, {"policy_loss": 0.5, "reward": -0.15}),
        ("{'loss': '0.69', 'epoch': 2.32}", None, 0, {}, {"loss": 0.69}),
        ("{'train_samples_per_second': 1.192, 'train_loss': 0.7}", None, 0, {"samples/s": 1.192}, {"train_loss": 0.7}),
        ("step 12 loss 0.4321", 12, 0, {}, {"loss": 0.4321}),
        ("epoch 3 step 12/40 loss=0.5 reward: 1e-3", 12, 40, {}, {"loss": 0.5, "reward": 0.001}),
        ("Training Progress:  33%|███▎   | 100/300 [00:00<?, ?it/s]", 100, 300, {}, {}),
        ("throughput 512.5 tokens/s", None, 0, {"tokens/s": 512.5}, {}),
    ],
)
def test_a_line_that_tells_of_progress(
    line: str, step: int | None, total: int, rates: dict[str, float], metrics: dict[str, float]
) -> None:
    found = parse_progress_line(line)
    assert found
    assert (found.step, found.total_or_0) == (step, total)
    assert dict(found.rate_by_unit) == pytest.approx(rates)
    assert metrics.items() <= found.metrics.items()
    assert [text for _, text in find_progress_candidates(b"x\n" + line.encode() + b"\ny")] == [line.encode()]


@pytest.mark.parametrize(
    "line",
    [
        "hello world",
        "Loading checkpoint shards: 100%|██████████| 4/4 [00:03<00:00,  1.44it/s]",
        "{'path': '/data', 'mode': 'vanilla'}",
        "step by step",
        "",
        "{" * 5000,
        "a: " * 9000,
    ],
)
def test_a_line_that_tells_nothing(line: str) -> None:
    assert parse_progress_line(line) is None


def test_candidates_have_the_offset_of_their_line() -> None:
    block = b"noise\nstep 1 loss 0.5\n\xff\xfe\nstep 2 loss 0.4"
    assert [(at, text.decode()) for at, text in find_progress_candidates(block)] == [
        (6, "step 1 loss 0.5"),
        (25, "step 2 loss 0.4"),
    ]


def test_the_latest_of_each_name_and_the_time_that_is_left() -> None:
    now = merge_readings(found for line in (TRL, VLLM, "step 51 loss 0.6") if (found := parse_progress_line(line)))
    assert (now.step, now.total_or_0, now.metrics["loss"], now.rate_by_unit["tokens/s out"]) == (51, 160, 0.6, 104.5)
    assert estimate_remaining_s(now) == pytest.approx((160 - 51) * 20)
    assert estimate_remaining_s(ProgressReading(step=3)) is None


def test_losses_and_rewards_come_first() -> None:
    found = parse_progress_line(VERL)
    assert found
    assert list(select_ranked_metrics(found.metrics)) == ["actor/pg_loss", "critic/rewards/mean"]
    assert select_ranked_metrics({"timing_s/step": 1.0}) == {}


def test_rows_of_metrics() -> None:
    assert parse_metrics_record({"stage": "train", "step": 3, "loss": 0.5, "ok": True}) == ProgressReading(
        step=3, metrics={"loss": 0.5}
    )
    assert parse_metrics_record({"stage": "x", "rollout": 1, "mean_reward": 2}) == ProgressReading(
        step=1, metrics={"mean_reward": 2.0}
    )
    for torn in (None, [], {"stage": "x"}, {"step": 1}, {"loss": float("nan")}):
        assert parse_metrics_record(torn) is None


VLLM_BAR = "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:05<00:15,  5.12s/it]"


@pytest.mark.parametrize(
    ("line", "bar"),
    [
        (VLLM_BAR, ProgressBar(label="Loading safetensors checkpoint shards", done=1, total=4, left_s=15)),
        (f"\x1b[36m(EngineCore pid=17)\x1b[0m {VLLM_BAR}", parse_bar_not_counting_steps(VLLM_BAR)),
        (
            "Loading checkpoint shards:  50%|█████     | 2/4 [00:02<00:02,  1.02s/it]",
            ProgressBar(label="Loading checkpoint shards", done=2, total=4, left_s=2),
        ),
        (
            "(VllmWorker rank=0 pid=99) Capturing CUDA graphs (mixed prefill-decode):  52%|█████▏    | 35/67 "
            "[00:03<00:02, 11.9it/s]",
            ProgressBar(label="Capturing CUDA graphs (mixed prefill-decode)", done=35, total=67, left_s=2),
        ),
        (
            "model-00001-of-00004.safetensors loading:  45%|████▌     | 1.20G/2.70G [00:30<1:02:40, 30.1MB/s]",
            ProgressBar(label="model-00001-of-00004.safetensors loading", done=1.2e9, total=2.7e9, left_s=3760),
        ),
        (
            "Processed prompts:  45%|████▌     | 74/164 [00:30<?, ?it/s, est. speed input: 0.00 toks/s]",
            ProgressBar(label="Processed prompts", done=74, total=164),
        ),
        (
            "Evaluating step 40: 0%|          | 0/164 [00:00<?, ?it/s]",
            ProgressBar(label="Evaluating step 40", done=0, total=164),
        ),
        ("Training Progress:  25%|##  | 50/200 [10:00<05:00, 2.0s/it]", None),  # steps have their own line
        (" 25%|##  | 50/200 [10:00<05:00, 2.0s/it]", None),
        ("Loading: 50%| | 0/0 [00:00<?, ?it/s]", None),
        ("Loading: 150%| | 6/4 [00:00<?, ?it/s]", None),
        ("disk is 45% full | 3/4 of it [here]", None),
        ("45% " * 20_000, None),
    ],
)
def test_a_line(line: str, bar: ProgressBar | None) -> None:
    assert parse_bar_not_counting_steps(line) == bar


def test_the_end_of_a_log() -> None:
    assert find_last_nonstep_bar_unless_full(f"begin\n{VLLM_BAR}\nnoise\n".encode()) == parse_bar_not_counting_steps(
        VLLM_BAR
    )
    assert find_last_nonstep_bar_unless_full(
        b"Loading: 10%| | 1/10 [00:01<00:09]\rLoading: 70%| | 7/10 [00:07<00:03]"
    ) == ProgressBar(label="Loading", done=7, total=10, left_s=3)
    assert (
        find_last_nonstep_bar_unless_full(b"Loading: 90%| | 9/10 [00:01<00:09]\nLoading: 100%| | 10/10 [00:07<00:00]\n")
        is None
    )
    assert find_last_nonstep_bar_unless_full(f"{VLLM_BAR}\n{'more' * 9}\n".encode() + b"line\n" * 20) is None
    assert find_last_nonstep_bar_unless_full(b"\xff\xfe") is None
