"""Stage smoke: the reinforcement learning loop; the entrypoint of a Ray job.

For each rollout: Ray actors sample the vLLM server and score the answers; TRL's GRPOTrainer makes one update; the new
weights go back into the running vLLM server, and its log-probabilities are checked against the trainer's.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from smoke import checkpoint, collect, deals, program
from smoke.metrics import Metrics
from smoke.servers import Policy

SAME_LOGPROB = 1e-4  # float32 on both sides: the same weights differ by 2e-6 at most, those of one update ago by 1e-3
PROBES = 4  # prompts compared after each sync


class Actors:
    """Ray actors that share the collecting of a rollout."""

    def __init__(self, args: argparse.Namespace) -> None:
        import ray

        ray.init(address=args.ray_address, log_to_driver=False, logging_level="warning")
        self.ray = ray
        remote = ray.remote(num_cpus=0.5, max_restarts=0)(collect.Collector)
        urls, threads = (args.policy_url, args.reward_url), max(1, 8 // args.actors)
        self.hot = [remote.remote(*urls, temperature=1.0, threads=threads) for _ in range(args.actors)]
        self.cold = remote.remote(*urls, temperature=0.0)

    def collect(self, rows: Sequence[dict[str, Any]], *, count: int, seed: int) -> list[collect.Scored]:
        """Return `count` sampled answers for each row, in order. The first failure ends the wait."""
        share = -(-len(rows) // len(self.hot))
        starts = range(0, len(rows), share)
        jobs = [
            actor.collect.remote(rows[at : at + share], count=count, seed=seed + at)
            for actor, at in zip(self.hot, starts, strict=False)
        ]
        self._wait(jobs)
        return [item for job in jobs for item in self.ray.get(job)]

    def judge(self, rows: Sequence[dict[str, Any]]) -> list[collect.Scored]:
        """Return one greedy answer for each row."""
        job = self.cold.collect.remote(rows, count=1, seed=0)
        self._wait([job])
        scored: list[collect.Scored] = self.ray.get(job)
        return scored

    def _wait(self, jobs: Sequence[Any]) -> None:
        left = list(jobs)
        while left:
            done, left = self.ray.wait(left, num_returns=1)
            try:
                self.ray.get(done)
            except self.ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, program.JobError) else error) from None


class Loop:
    """The state of a run: trainer, actors, weights in the server, counters."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.metrics = Metrics(args.metrics, "smoke")
        self.rows = {row["prompt"]: row for row in deals.read(args.data / "train.jsonl")}
        self.check = deals.read(args.data / "eval.jsonl")[: args.eval_rows]
        self.actors = Actors(args)
        self.policy = Policy(args.policy_url)
        self.rollouts = 0
        self.means: list[float] = []
        self.version = 0  # updates whose weights the server holds

    def rollout(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Collect one rollout for GRPOTrainer: `prompts` holds each prompt `generations` times in a row."""
        if trainer.state.global_step != self.version:
            self.sync(trainer)
        began = time.monotonic()
        texts = [prompt[0]["content"] for prompt in prompts]
        rows = [self.rows[text] for text in texts[:: self.args.generations]]
        seed = (self.args.seed * 1_000_003 + self.rollouts) * 10_007
        scored = self.actors.collect(rows, count=self.args.generations, seed=seed)
        if [item.prompt for item in scored] != texts:
            raise program.JobError("smoke: the trainer asked for prompts in an unexpected order; check the TRL version")
        facts = collect.summary(scored, began)
        print(f"Final collected {len(scored)} samples from rollout to train", flush=True)
        print(collect.line(f"rollout {self.rollouts}", facts), flush=True)
        self.metrics.add(rollout=self.rollouts, **facts)
        self.means.append(facts["mean_reward"])
        self.rollouts += 1
        return {
            "prompt_ids": [list(item.sample.prompt_tokens) for item in scored],
            "completion_ids": [list(item.sample.tokens) for item in scored],
            "logprobs": [list(item.sample.logprobs) for item in scored],
            "score": [item.score["reward"] for item in scored],
        }

    def sync(self, trainer: Any) -> None:
        """Put the trainer's weights into the running server, and prove that they are the ones it answers with.

        Done at step 0 too: a server that was started with the checkpoint shows no gap before.
        """
        began, self.version = time.monotonic(), trainer.state.global_step
        before = self.gap(trainer.model)
        folder = self.args.out / "weights" / f"step-{self.version}"
        checkpoint.write(folder, trainer.model.save_pretrained)
        self.policy.load_weights(folder)
        shutil.rmtree(folder)
        after = self.gap(trainer.model)
        if after > SAME_LOGPROB:
            raise program.JobError(
                f"vLLM server {self.args.policy_url} does not answer with the weights of step {self.version}: its "
                f"log-probabilities differ by {after:.2g}; it needs --dtype float32 and an untied head"
            )
        seconds = time.monotonic() - began
        print(
            f"weights of step {self.version} in the server: logprob gap {before:.1e} before, {after:.1e} after, "
            f"{seconds:.2f} s",
            flush=True,
        )

    def gap(self, model: Any) -> float:
        """Return the largest difference between the server's log-probabilities of some answers and the model's."""
        import torch

        largest = 0.0
        for prompt in list(self.rows)[:PROBES]:
            (sample,) = self.policy.sample(prompt, count=1, seed=0, temperature=1.0)
            tokens = torch.tensor([sample.prompt_tokens + sample.tokens])
            with torch.no_grad():
                logits = model(tokens).logits[0, len(sample.prompt_tokens) - 1 : -1]
            own = torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(sample.tokens)[:, None])[:, 0]
            largest = max(largest, float((own - torch.tensor(sample.logprobs)).abs().max()))
        return largest

    def evaluate(self, name: str) -> float:
        """Score greedy answers to the eval decisions, report, and return the mean reward."""
        if not self.check:
            return 0.0
        began = time.monotonic()
        facts = collect.summary(self.actors.judge(self.check), began)
        print(collect.line(f"eval {name}", facts), flush=True)
        self.metrics.add(eval=name, **facts)
        return facts["mean_reward"]


def make_trainer(loop: Loop) -> Any:
    """Return TRL's GRPOTrainer over the checkpoint, fed by `loop.rollout`."""
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    args = loop.args

    class Report(TrainerCallback):  # type: ignore[misc]
        def on_log(self, _args: Any, state: Any, _control: Any, logs: dict[str, float], **_: Any) -> None:
            if "loss" in logs:
                loop.metrics.add(step=state.global_step, loss=float(logs["loss"]), grad_norm=logs.get("grad_norm"))
                print(f"step {state.global_step} loss {float(logs['loss']):.4f}", flush=True)

    config = GRPOConfig(
        output_dir=str(args.out / ".trainer"), use_cpu=True, bf16=False, seed=args.seed, max_steps=args.rollouts,
        per_device_train_batch_size=args.prompts * args.generations, num_generations=args.generations,
        max_completion_length=16, temperature=1.0, beta=0.0, learning_rate=args.lr, lr_scheduler_type="constant",
        logging_steps=1, disable_tqdm=True, report_to=[], save_strategy="no", gradient_checkpointing=False,
        dataloader_pin_memory=False,
    )  # fmt: skip
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in loop.rows])
    trainer = GRPOTrainer(
        model=str(args.checkpoint), reward_funcs=reward, args=config, train_dataset=data,
        rollout_func=loop.rollout, callbacks=[Report()],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer


def reward(completions: list[Any], score: list[float], **_: Any) -> list[float]:
    """Hand the reward server's scores, collected with the rollout, to GRPOTrainer."""
    assert len(completions) == len(score)
    return score


def verdict(means: Sequence[float], rise: float | None) -> str:
    """Return the closing line. Raises JobError when the mean reward did not rise by `rise`, if that is given."""
    count = min(5, len(means) // 2)
    first, last = fmean(means[:count]), fmean(means[-count:])
    text = f"mean reward {first:.4f} (first {count} rollouts) -> {last:.4f} (last {count})"
    if rise is not None and not last - first >= rise:
        raise program.JobError(f"smoke: {text}: a rise of {rise} was wanted; raise --rollouts or change --seed")
    return f"[smoke] passed: {len(means)} rollouts, {text}"


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="smoke.loop", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of train.jsonl and eval.jsonl")
    parser.add_argument("--checkpoint", type=Path, required=True, help="the checkpoint the server was started with")
    parser.add_argument("--out", type=Path, required=True, help="folder the server reads too; gets `checkpoint`")
    parser.add_argument("--metrics", type=Path, required=True, help="metrics.jsonl to append to")
    parser.add_argument("--policy-url", required=True, help="vLLM server, for example http://127.0.0.1:8000")
    parser.add_argument("--reward-url", required=True, help="reward server, for example http://127.0.0.1:8400")
    parser.add_argument("--ray-address", default="auto", help="running Ray cluster")
    parser.add_argument("--rollouts", type=int, default=3, help="rollouts, one update each; at least 2")
    parser.add_argument("--prompts", type=int, default=8, help="decisions in a rollout")
    parser.add_argument("--generations", type=int, default=8, help="answers per decision")
    parser.add_argument("--eval-rows", type=int, default=16, help="eval decisions judged before and after; 0: none")
    parser.add_argument("--lr", type=float, default=8e-4)
    parser.add_argument("--rise", type=float, help="wanted gain of mean reward, last five rollouts over first five")
    parser.add_argument("--actors", type=int, default=2, help="Ray actors that collect")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.rollouts < 2:
        parser.error("--rollouts must be at least 2: the second one proves that the new weights arrived")
    return args


def main() -> None:
    """Run the stage."""
    args = options()
    program.settle(args.out / ".cache", args.threads)
    checkpoint.verify(args.checkpoint)
    loop = Loop(args)
    trainer = make_trainer(loop)
    loop.sync(trainer)
    before = loop.evaluate("before")
    trainer.train()
    loop.sync(trainer)
    after = loop.evaluate("after")

    def save(folder: Path) -> None:
        trainer.model.save_pretrained(folder)
        trainer.processing_class.save_pretrained(folder)

    checkpoint.write(args.out / "checkpoint", save)
    shutil.rmtree(args.out / "weights", ignore_errors=True)
    print(f"[smoke] checkpoint at {args.out / 'checkpoint'}", flush=True)
    print(f"[smoke] eval reward {before:.4f} -> {after:.4f}", flush=True)
    print(verdict(loop.means, args.rise), flush=True)


if __name__ == "__main__":
    program.run("smoke.loop", main)
