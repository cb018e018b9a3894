"""One rollout: sample answers from the policy, score them, summarise. Runs in any process, also as a Ray actor."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from smoke.decision import Spot
from smoke.servers import Policy, Rewards, Sample


@dataclass(frozen=True, kw_only=True)
class Scored:
    """An answer with its score; `score` has the keys of `smoke.decision.Score`."""

    prompt: str
    sample: Sample
    score: dict[str, Any]


class Collector:
    """Collects rollouts through one policy server and one reward server."""

    def __init__(self, policy_url: str, reward_url: str, *, temperature: float, threads: int = 8) -> None:
        self.policy = Policy(policy_url)
        self.rewards = Rewards(reward_url)
        self.temperature = temperature
        self.pool = ThreadPoolExecutor(threads)

    def collect(self, rows: Sequence[dict[str, Any]], *, count: int, seed: int) -> list[Scored]:
        """Return `count` scored answers for each row, in the order of the rows.

        Parameters
        ----------
        rows
            Lines of the data: a spot and its `prompt`.
        seed
            Row `i` samples with seed `seed + i`.

        Raises
        ------
        JobError
            A server failed; requests that have not begun are given up.
        """

        def ask(place: int) -> list[Sample]:
            return self.policy.sample(
                rows[place]["prompt"], count=count, seed=seed + place, temperature=self.temperature
            )

        jobs = [self.pool.submit(ask, place) for place in range(len(rows))]
        try:
            samples = [(row, sample) for row, job in zip(rows, jobs, strict=True) for sample in job.result()]
        finally:
            for job in jobs:
                job.cancel()
        spots = [Spot.from_json(row) for row, _ in samples]
        scores = self.rewards.score(spots, [sample.text for _, sample in samples])
        return [
            Scored(prompt=row["prompt"], sample=sample, score=score)
            for (row, sample), score in zip(samples, scores, strict=True)
        ]


def summary(scored: Sequence[Scored], began: float) -> dict[str, float]:
    """Return mean_reward, reward_std, well_formed, legal, best (parts of 1), samples and seconds since `began`."""
    rewards = [item.score["reward"] for item in scored]
    return {
        "mean_reward": round(fmean(rewards), 4),
        "reward_std": round(pstdev(rewards), 4),
        "well_formed": round(fmean(item.score["action"] is not None for item in scored), 4),
        "legal": round(fmean(item.score["legal"] for item in scored), 4),
        "best": round(fmean(item.score["action"] == item.score["best"] for item in scored), 4),
        "samples": len(scored),
        "seconds": round(time.monotonic() - began, 2),
    }


def line(name: str, facts: dict[str, float]) -> str:
    """Return the log line of a rollout, for example `[holdem][rollout 0] mean_reward=0.5312 ...`."""
    return f"[holdem][{name}] " + " ".join(f"{key}={value}" for key, value in facts.items())
