"""Run verl's SFT trainer, `sft.train OPTIONS -- COMMAND`, and prove that what it left can be used.

Before: is there room for the checkpoints? While it runs: the optimizer's state of all but the latest checkpoints is
removed, if asked. After: each expected checkpoint has a whole Hugging Face export.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from sft import corridor, plan
from sft.checkpoints import find_checkpoints

TRACKER = "latest_checkpointed_iteration.txt"


def options() -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line; what follows `--` is the trainer's command."""
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(prog="sft.train", description=__doc__)
    parser.add_argument("--title", required=True, help="first line of the banner")
    parser.add_argument("--says", required=True, help="second line of the banner")
    parser.add_argument("--done", default="", help="line that is printed when all of it holds")
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder that gets global_step_*")
    parser.add_argument("--metrics", type=Path, required=True, help="file that verl's file logger writes")
    parser.add_argument("--exports", type=Path, required=True, help="file that gets the whole exports, by step")
    plan.add_options(parser)
    return parser.parse_args(words[:at]), words[at + 1 :]


def remote_code_problem(command: list[str]) -> str:
    """Return why the command may not carry out Python code of its model's repository; empty when it does not, or may.

    What a repository on the hub holds changes under its name, and the code runs beside the secrets of the run.
    """
    settings = dict(word.partition("=")[::2] for word in command)
    model = settings.get("model.path", "").strip('"')
    if settings.get("model.trust_remote_code") != "True" or Path(model).is_dir():
        return ""
    step = f"hf download {model} --revision COMMIT --local-dir DIR, then name DIR"
    return f"remote_code: {model} is no folder, and whoever changes that repository runs code here: {step}"


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
    """Return what is wrong with the exports of the expected checkpoints."""
    found = {checkpoint.step: checkpoint for checkpoint in find_checkpoints(folder)}
    problems = [f"global_step_{step} was not saved in {folder}" for step in steps if step not in found]
    problems += [found[step].missing for step in steps if step in found and found[step].missing]
    return problems if found else [f"no checkpoint in {folder}"]


def main() -> None:
    """Run the trainer and check what it left."""
    args, command = options()
    print(f"{'=' * 44}\n{args.title}\n  {args.says}\n{'=' * 44}", flush=True)
    args.metrics.parent.mkdir(parents=True, exist_ok=True)
    if found := remote_code_problem(command) or plan.problem(args, args.checkpoints):
        sys.exit(f"sft.train: error: {found}")
    passes, steps = plan.accumulation(args.batch, args.gpus, args.micro_batch), plan.steps_of(args)
    shown = ", ".join(map(str, steps)) or "not known"
    print(f"[train] {args.gpus} GPUs, {passes} passes of {args.micro_batch} rows a step; saves: {shown}", flush=True)
    code = _run(command, args)
    if code:
        sys.exit(code)
    _report(args, steps)


def _run(command: list[str], args: argparse.Namespace) -> int:
    env = os.environ | {"VERL_FILE_LOGGER_PATH": str(args.metrics)}
    env.setdefault("WANDB_MODE", "online" if os.environ.get("WANDB_API_KEY") else "offline")
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(args, ended), daemon=True)
    watch.start()
    try:
        return subprocess.run(command, env=env, check=False).returncode
    finally:
        ended.set()
        watch.join(60)


def _watch(args: argparse.Namespace, ended: threading.Event) -> None:
    judged = False
    while not ended.wait(10):
        series = corridor.read_series(args.metrics, "train/loss")
        if not judged and len(series) >= corridor.LEARNS:
            judged = True
            for line in corridor.flat(series):
                print(line, flush=True)
        for path in prune(args.checkpoints, args.keep_optimizer):
            print(f"[train] removed {path}: a later checkpoint is there to resume from", flush=True)


def _report(args: argparse.Namespace, steps: list[int]) -> None:
    series = [corridor.read_series(args.metrics, key) for key in ("train/loss", "val/loss", "train/grad_norm")]
    for line in corridor.notes(*series):
        print(line, flush=True)
    if problems := check_exports(args.checkpoints, steps):
        sys.exit("\n".join(f"  [FAIL] {problem}" for problem in problems))
    whole = {found.step: str(found.export) for found in find_checkpoints(args.checkpoints) if not found.missing}
    args.exports.write_text(json.dumps(whole, indent=2) + "\n")
    print("  [PASS] HF model checkpoint found", flush=True)
    if args.done:
        print(args.done, flush=True)


if __name__ == "__main__":
    main()
