"""Draw loss and reward of all stages from metrics.jsonl into one PNG."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smoke import metrics, program


def smooth(values: Sequence[float], width: int) -> list[float]:
    """Return the mean of each value and the up to `width - 1` values before it; same length."""
    windows = (values[max(0, end - width) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]


def series(records: Sequence[dict[str, Any]], stage: str, x: str, y: str) -> tuple[list[float], list[float]]:
    """Return the x and y values of the records of one stage that have both."""
    kept = [record for record in records if record["stage"] == stage and x in record and record.get(y) is not None]
    return [record[x] for record in kept], [record[y] for record in kept]


def draw(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the PNG, by rename: SFT loss, GRPO loss, and the reward of each rollout with its running mean."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (sft, grpo, reward) = pyplot.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    sft.plot(*series(records, "train-only", "step", "loss"), color="tab:blue")
    sft.set(title="train-only: SFT loss", xlabel="step", ylabel="loss", yscale="log")
    grpo.plot(*series(records, "smoke", "step", "loss"), color="tab:blue")
    grpo.set(title="smoke: GRPO loss", xlabel="step", ylabel="loss")
    rollouts, means = series(records, "smoke", "rollout", "mean_reward")
    reward.plot(rollouts, means, ".", color="tab:gray", alpha=0.6, label="rollout")
    reward.plot(rollouts, smooth(means, 10), color="tab:red", label="mean of 10")
    _, start = series(records, "rollout-only", "rollout", "mean_reward")
    if start:
        reward.axhline(start[-1], color="tab:green", linestyle="--", label="rollout-only")
    reward.set(title="smoke: mean reward (1 = best action)", xlabel="rollout", ylabel="reward")
    reward.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    figure.savefig(part, format="png", dpi=110)
    part.rename(path)


def main() -> None:
    """Parse the command line and draw."""
    parser = argparse.ArgumentParser(prog="smoke.plot", description=__doc__)
    parser.add_argument("--metrics", type=Path, required=True, help="metrics.jsonl of the run")
    parser.add_argument("--out", type=Path, required=True, help="PNG to write")
    args = parser.parse_args()
    records = metrics.read(args.metrics)
    program.settle(args.out.parent / ".cache", threads=1)
    draw(records, args.out)
    print(f"drew {len(records)} records to {args.out}", flush=True)


if __name__ == "__main__":
    program.run("smoke.plot", main)
