"""Run verl's SFT trainer, `sft.train OPTIONS -- COMMAND`, and prove that what it left can be used (P167-P178).

Before: is there room for the checkpoints? While it runs: the optimizer's state of all but the latest checkpoints is
removed, if asked (P197). After: each expected checkpoint has a whole Hugging Face export.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from sft import corridor
from sft.checkpoints import find_checkpoints

TRACKER = "latest_checkpointed_iteration.txt"
# Bytes of a parameter in a checkpoint: fp32 shards, AdamW's two fp32 moments, the bf16 or fp32 export.
MODEL, OPTIMIZER, EXPORT = 4, 8, 4


def options() -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line; what follows `--` is the trainer's command."""
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(prog="sft.train", description=__doc__)
    parser.add_argument("--title", required=True, help="first line of the banner")
    parser.add_argument("--says", required=True, help="second line of the banner")
    parser.add_argument("--done", default="", help="line that is printed when all of it holds")
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder that gets global_step_*")
    parser.add_argument("--rows", type=int, default=0, help="rows of training data; 0: not known")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1, help="rows of one optimizer step, over all GPUs")
    parser.add_argument("--micro-batch", type=int, default=1, help="rows that one GPU takes at a time")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="optimizer steps in all; 0: as the epochs give")
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--keep-optimizer", type=int, default=0, help="checkpoints that keep it; 0: all")
    parser.add_argument("--billions", type=float, default=0.0, help="parameters of the model; 0: no room is asked for")
    parser.add_argument("--metrics", type=Path, required=True, help="file that verl's file logger writes")
    return parser.parse_args(words[:at]), words[at + 1 :]


def accumulation(batch: int, gpus: int, micro_batch: int) -> int:
    """Return the micro-batches of an optimizer step on one GPU; `ValueError` when they are no whole number (P174)."""
    if batch % (gpus * micro_batch):
        nearest = max(1, round(batch / (gpus * micro_batch))) * gpus * micro_batch
        raise ValueError(f"batch {batch} is no multiple of {gpus} GPUs x {micro_batch} rows; the nearest is {nearest}")
    return batch // (gpus * micro_batch)


def saved_steps(rows: int, gpus: int, batch: int, epochs: int, steps: int, every: int) -> list[int]:
    """Return the steps that leave a checkpoint: every so many, and the last. Rows that fill no batch are dropped."""
    last = steps or (rows // gpus) // max(1, batch // gpus) * epochs
    return sorted({*range(every, last + 1, every), last} - {0})


def room_needed(billions: float, saves: int, keep: int) -> int:
    """Return the bytes that `saves` checkpoints take at most, `keep` of them (and the one being written) whole."""
    whole = min(saves, keep + 1) if keep else saves
    return int(billions * 1e9 * (saves * EXPORT + whole * (MODEL + OPTIMIZER)))


def prune(folder: Path, keep: int) -> list[Path]:
    """Remove optimizer and model shards of all but the latest `keep` finished checkpoints; the exports stay.

    A checkpoint counts as finished when verl's tracker names it or a later one. Returns what was removed.
    """
    try:
        latest = int((folder / TRACKER).read_text())
    except (FileNotFoundError, ValueError):
        return []
    done = [found for found in find_checkpoints(folder) if found.step <= latest]
    removed = []
    for checkpoint in done[: -keep or None] if keep else []:
        if checkpoint.missing:  # without an export its shards are all there is
            continue
        for path in (*checkpoint.path.glob("optim_world_size_*.pt"), *checkpoint.path.glob("model_world_size_*.pt")):
            path.unlink()
            removed.append(path)
    return removed


def check_exports(folder: Path, steps: list[int]) -> list[str]:
    """Return what is wrong with the exports of the expected checkpoints (P168, P169)."""
    found = {checkpoint.step: checkpoint for checkpoint in find_checkpoints(folder)}
    problems = [f"global_step_{step} was not saved in {folder}" for step in steps if step not in found]
    problems += [found[step].missing for step in steps if step in found and found[step].missing]
    return problems if found else [f"no checkpoint in {folder}"]


def main() -> None:
    """Run the trainer and check what it left."""
    args, command = options()
    print(f"{'=' * 44}\n{args.title}\n  {args.says}\n{'=' * 44}", flush=True)
    args.checkpoints.mkdir(parents=True, exist_ok=True)
    args.metrics.parent.mkdir(parents=True, exist_ok=True)
    try:
        passes = accumulation(args.batch, args.gpus, args.micro_batch)
    except ValueError as error:
        sys.exit(f"sft.train: error: {error}")
    steps = saved_steps(args.rows, args.gpus, args.batch, args.epochs, args.steps, args.save_every)
    shown = ", ".join(map(str, steps)) or "not known"
    print(f"[train] {args.gpus} GPUs, {passes} passes of {args.micro_batch} rows a step; saves: {shown}", flush=True)
    need, free = room_needed(args.billions, len(steps), args.keep_optimizer), shutil.disk_usage(args.checkpoints).free
    if need > free:
        sys.exit(
            f"sft.train: error: {len(steps)} checkpoints need {need / 1e9:.0f} GB, {free / 1e9:.0f} GB are free in "
            f"{args.checkpoints}; keep fewer optimizer states (--set keep_optimizer=1) or save less often (P144)"
        )
    code = _run(command, args)
    if code:
        sys.exit(code)
    _report(args, steps)


def _run(command: list[str], args: argparse.Namespace) -> int:
    env = os.environ | {"VERL_FILE_LOGGER_PATH": str(args.metrics)}
    env.setdefault("WANDB_MODE", "online" if os.environ.get("WANDB_API_KEY") else "offline")
    ended = threading.Event()
    watch = threading.Thread(target=_prune_until, args=(args, ended), daemon=True)
    watch.start()
    try:
        return subprocess.run(command, env=env, check=False).returncode
    finally:
        ended.set()
        watch.join(60)


def _prune_until(args: argparse.Namespace, ended: threading.Event) -> None:
    while not ended.wait(10):
        for path in prune(args.checkpoints, args.keep_optimizer):
            print(f"[train] removed {path}: a later checkpoint is there to resume from (P197)", flush=True)


def _report(args: argparse.Namespace, steps: list[int]) -> None:
    series = [corridor.read_series(args.metrics, key) for key in ("train/loss", "val/loss", "train/grad_norm")]
    for line in corridor.notes(*series):
        print(line, flush=True)
    if problems := check_exports(args.checkpoints, steps):
        sys.exit("\n".join(f"  [FAIL] {problem}" for problem in problems))
    print("  [PASS] HF model checkpoint found", flush=True)
    if args.done:
        print(args.done, flush=True)


if __name__ == "__main__":
    main()
