"""Bars that count something else than steps, as servers and loaders write them."""

from __future__ import annotations

import pytest

from rlbox.logs.progress import ProgressBar, find_last_bar, parse_progress_bar

VLLM = "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:05<00:15,  5.12s/it]"


@pytest.mark.parametrize(
    ("line", "bar"),
    [
        (VLLM, ProgressBar(label="Loading safetensors checkpoint shards", done=1, total=4, left_s=15)),
        (f"\x1b[36m(EngineCore pid=17)\x1b[0m {VLLM}", parse_progress_bar(VLLM)),
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
    assert parse_progress_bar(line) == bar


def test_the_end_of_a_log() -> None:
    assert find_last_bar(f"begin\n{VLLM}\nnoise\n".encode()) == parse_progress_bar(VLLM)
    assert find_last_bar(b"Loading: 10%| | 1/10 [00:01<00:09]\rLoading: 70%| | 7/10 [00:07<00:03]") == ProgressBar(
        label="Loading", done=7, total=10, left_s=3
    )
    assert find_last_bar(b"Loading: 90%| | 9/10 [00:01<00:09]\nLoading: 100%| | 10/10 [00:07<00:00]\n") is None
    assert find_last_bar(f"{VLLM}\n{'more' * 9}\n".encode() + b"line\n" * 20) is None
    assert find_last_bar(b"\xff\xfe") is None
