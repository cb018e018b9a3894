"""What a training will do, reckoned before it starts: passes of a step, steps that are saved, room on the disk."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

# Bytes of a parameter in a checkpoint: fp32 shards, AdamW's two fp32 moments, the export, which verl writes in fp32.
MODEL, OPTIMIZER, EXPORT = 4, 8, 4


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `passes`, `steps` and `room_problem` look at."""
    parser.add_argument("--rows", type=int, default=0, help="rows of training data; 0: not known")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1, help="rows of one optimizer step, over all GPUs")
    parser.add_argument("--micro-batch", type=int, default=1, help="rows that one GPU takes at a time")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="optimizer steps in all; 0: as the epochs give")
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--save", default="[model,optimizer,extra,hf_model]", help="what a checkpoint holds")
    parser.add_argument("--keep-optimizer", type=int, default=0, help="checkpoints that keep it; 0: all")
    parser.add_argument("--billions", type=float, default=0.0, help="parameters of the model; 0: no room is asked for")


def accumulation(batch: int, gpus: int, micro_batch: int) -> int:
    """Return the passes of one GPU for an optimizer step; `ValueError` when they are no whole number."""
    if batch % (gpus * micro_batch):
        nearest = max(1, round(batch / (gpus * micro_batch))) * gpus * micro_batch
        found = f"batch {batch} is not a multiple of {gpus} GPUs x {micro_batch} rows"
        raise ValueError(f"{found}; the nearest is {nearest}")
    return batch // (gpus * micro_batch)


def saved_steps(rows: int, gpus: int, batch: int, epochs: int, steps: int, every: int) -> list[int]:
    """Return the steps that leave a checkpoint: every so many, and the last. Rows that fill no batch are dropped."""
    last = steps or (rows // gpus) // max(1, batch // gpus) * epochs
    return sorted({*range(every, last + 1, every), last} - {0})


def room_needed(billions: float, saves: int, keep: int, save: str = "optimizer") -> int:
    """Return the bytes that `saves` checkpoints take at most, `keep` of them and the one being written whole."""
    whole = min(saves, keep + 1) if keep else saves
    shards = MODEL + (OPTIMIZER if "optimizer" in save else 0)
    return int(billions * 1e9 * (saves * EXPORT + whole * shards))


def steps_of(args: argparse.Namespace) -> list[int]:
    """Return the steps that leave a checkpoint, by the options."""
    return saved_steps(args.rows, args.gpus, args.batch, args.epochs, args.steps, args.save_every)


def problem(args: argparse.Namespace, folder: Path) -> str:
    """Return why the training cannot go as the options say, its checkpoints below `folder`; nothing when it can."""
    try:
        accumulation(args.batch, args.gpus, args.micro_batch)
    except ValueError as error:
        return str(error)
    saves = len(steps_of(args))
    need = room_needed(args.billions, saves, args.keep_optimizer, args.save)
    folder.mkdir(parents=True, exist_ok=True)
    there = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())  # of a training that is resumed
    if need <= (free := shutil.disk_usage(folder).free + there):
        return ""
    less = room_needed(args.billions, saves, 1, "")
    return (
        f"{saves} checkpoints need {need / 1e9:.0f} GB, {free / 1e9:.0f} GB are free in {folder}; with "
        f"--set keep_optimizer=1 --set 'save=[model,extra,hf_model]' {less / 1e9:.0f} GB, and a training that is "
        f"resumed begins with a fresh optimizer"
    )
