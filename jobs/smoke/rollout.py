"""Stage rollout-only: sample the served checkpoint on the eval decisions and score the answers; nothing is trained."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from smoke import checkpoint, collect, deals, program
from smoke.metrics import Metrics


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="smoke.rollout", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of eval.jsonl")
    parser.add_argument("--checkpoint", type=Path, required=True, help="the checkpoint the server was started with")
    parser.add_argument("--out", type=Path, required=True, help="folder that gets generations.jsonl")
    parser.add_argument("--metrics", type=Path, required=True, help="metrics.jsonl to append to")
    parser.add_argument("--policy-url", required=True, help="vLLM server, for example http://127.0.0.1:8000")
    parser.add_argument("--reward-url", required=True, help="reward server, for example http://127.0.0.1:8400")
    parser.add_argument("--prompts", type=int, default=32, help="eval decisions to use")
    parser.add_argument("--samples", type=int, default=2, help="answers per decision")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--well-formed", type=float, default=0.5, help="part of the answers that must be well-formed")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Run the stage."""
    args = options()
    checkpoint.verify(args.checkpoint)
    rows = deals.read(args.data / "eval.jsonl")[: args.prompts]
    collector = collect.Collector(args.policy_url, args.reward_url, temperature=args.temperature)
    began = time.monotonic()
    scored = collector.collect(rows, count=args.samples, seed=args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    part = args.out / ".generations.part"
    part.write_text("".join(json.dumps(asdict(item)) + "\n" for item in scored))
    part.rename(args.out / "generations.jsonl")
    facts = collect.summary(scored, began)
    Metrics(args.metrics, "rollout-only").add(rollout=0, **facts)
    print(collect.line("rollout-only", facts), flush=True)
    if facts["well_formed"] < args.well_formed:
        raise program.JobError(
            f"rollout-only: {facts['well_formed']:.0%} of the answers are well-formed, {args.well_formed:.0%} wanted; "
            f"read {args.out / 'generations.jsonl'}, then run train-only with more --steps"
        )
    print(f"[rollout-only] passed: {len(scored)} generations in {args.out / 'generations.jsonl'}", flush=True)


if __name__ == "__main__":
    program.run("smoke.rollout", main)
