"""Stage train-only: supervised fine-tuning of a small decoder with random weights; no server is started.

The answers it learns are legal actions drawn at random: the policy learns the format and which actions are legal, and
knows nothing of which is good. That is left to reinforcement learning.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smoke import checkpoint, deals, program
from smoke.decision import Spot
from smoke.metrics import Metrics


def examples(rows: Sequence[dict[str, Any]], count: int, seed: int) -> list[dict[str, list[dict[str, str]]]]:
    """Return `count` prompt/completion pairs in TRL's conversational format, actions drawn from the legal ones."""
    rng = random.Random(seed)
    pairs = []
    for place in range(count):
        row = rows[place % len(rows)]
        action = rng.choice(Spot.from_json(row).legal)
        answer = {"role": "assistant", "content": f"<action>{action}</action>"}
        pairs.append({"prompt": [{"role": "user", "content": row["prompt"]}], "completion": [answer]})
    return pairs


def fit(args: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> list[float]:
    """Train, write the checkpoint, and return the loss of every step."""
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    from smoke import policy

    pairs = examples(rows, args.steps * args.batch, args.seed)
    texts = [pair["prompt"][0]["content"] + pair["completion"][0]["content"] for pair in pairs]
    tokenizer = policy.make_tokenizer(texts, policy.Shape.vocabulary)
    shape = policy.Shape(layers=args.layers, hidden=args.hidden)
    metrics, losses = Metrics(args.metrics, "train-only"), list[float]()

    class Report(TrainerCallback):  # type: ignore[misc]
        def on_log(self, _args: Any, state: Any, _control: Any, logs: dict[str, float], **_: Any) -> None:
            if "loss" in logs:
                losses.append(float(logs["loss"]))
                metrics.add(step=state.global_step, loss=losses[-1])
                print(f"step {state.global_step} loss {losses[-1]:.4f}", flush=True)

    config = SFTConfig(
        output_dir=str(args.out / ".trainer"), use_cpu=True, bf16=False, seed=args.seed, max_steps=args.steps,
        per_device_train_batch_size=args.batch, learning_rate=args.lr, lr_scheduler_type="cosine", warmup_steps=5,
        max_length=policy.LONGEST, logging_steps=1, disable_tqdm=True, report_to=[], save_strategy="no",
        gradient_checkpointing=False, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = SFTTrainer(
        model=policy.make_model(tokenizer, shape, args.seed), args=config, train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer, callbacks=[Report()],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()

    def save(folder: Path) -> None:
        trainer.model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    checkpoint.write(args.out / "checkpoint", save)
    return losses


def judge(losses: Sequence[float], margin: float) -> str:
    """Return the closing line. Raises JobError when the mean of the last steps is not `margin` below the first loss."""
    first, tail = losses[0], losses[-min(5, len(losses)) :]
    last = sum(tail) / len(tail)
    verdict = f"loss {first:.4f} -> {last:.4f} ({100 * (1 - last / first):.0f} % lower, {100 * margin:.0f} % wanted)"
    if not last <= (1 - margin) * first:
        raise program.JobError(f"train-only: loss did not fall enough: {verdict}; raise --steps or --lr")
    return f"[train-only] passed: {verdict}"


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="smoke.train", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of train.jsonl; made when it is missing")
    parser.add_argument("--out", type=Path, required=True, help="folder that gets `checkpoint`")
    parser.add_argument("--metrics", type=Path, required=True, help="metrics.jsonl to append to")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--margin", type=float, default=0.8, help="part of the first loss that must be gone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--train-rows", type=int, default=256, help="rows of train.jsonl when it is made")
    parser.add_argument("--eval-rows", type=int, default=32, help="rows of eval.jsonl when it is made")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Run the stage."""
    args = options()
    program.settle(args.out / ".cache", args.threads)
    if not (args.data / "train.jsonl").exists():
        streets = ("turn", "river")
        deals.write(args.data, seed=args.seed, train=args.train_rows, evaluate=args.eval_rows, streets=streets)
    losses = fit(args, deals.read(args.data / "train.jsonl"))
    print(judge(losses, args.margin), flush=True)
    print(f"[train-only] checkpoint at {args.out / 'checkpoint'}", flush=True)


if __name__ == "__main__":
    program.run("smoke.train", main)
