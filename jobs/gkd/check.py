"""All that a distillation run stands still for, asked before it starts, in less than a minute (P111-P122, P132)."""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

SLOW = 20e6  # bytes a second below which loading data looks like a hang


def split_problem(actor: int, rollout: int, teacher: Sequence[str], visible: int) -> str:
    """Return what is wrong with the split of one node's GPUs, and the nearest one that fits; nothing when it fits.

    Parameters
    ----------
    teacher
        GPUs that the teacher takes, by number.
    """
    wanted = actor + rollout + len(teacher)
    if wanted > visible:
        half = 1 << max(1, (visible - len(teacher)) // 2).bit_length() - 1  # powers of two share out a batch
        others, taught = _listed(range(2 * half)), _listed(range(2 * half, 2 * half + len(teacher)))
        nearest = f"--set actor_gpus={half} --set rollout_gpus={half} --set gpus={others} --set teacher_gpus={taught}"
        fits = nearest if 2 * half + len(teacher) <= visible else "a machine with more GPUs, or smaller models"
        return f"{actor} actor + {rollout} rollout + {len(teacher)} teacher GPUs, {visible} are visible: {fits}"
    if late := [number for number in teacher if not number.isdigit() or int(number) >= visible]:
        return f"teacher_gpus names GPU {late[0]}, the node has 0 to {visible - 1}"
    if early := [number for number in teacher if int(number) < actor + rollout]:
        return f"teacher GPU {early[0]} is one of the {actor + rollout} that actor and rollout take"
    return ""


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def visible_gpus() -> int:
    """Return how many GPUs the driver shows; 0 without one."""
    try:
        listed = subprocess.run(("nvidia-smi", "-L"), capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def data_problem(path: Path) -> str:
    """Return why the training data cannot be read, or nothing (P118)."""
    if not path.is_file():
        return f"{path} is missing: --set train_file=FILE (a question in each row's prompt)"
    began, size = time.monotonic(), min(path.stat().st_size, 64 << 20)
    with path.open("rb") as stream:
        stream.read(size)
    rate = size / max(1e-6, time.monotonic() - began)
    if size > 1 << 20 and rate < SLOW:
        print(f"[WARN] {path} is read at {rate / 1e6:.1f} MB/s: `Generating train split` will take long", flush=True)
    return "" if importlib.util.find_spec("datasets") else "the library `datasets` is not in this environment"


def interface_problem(name: str, routes: str = "") -> str:
    """Return what is wrong with the network interface that NCCL is told to use, or nothing (P120).

    Proposed is the one that the default route of `routes`, the text of /proc/net/route, leaves by.
    """
    known = [found for _, found in socket.if_nameindex()]
    if not name or name.lstrip("^=") in known:
        return ""
    rows = (line.split() for line in routes.splitlines())
    out = [row[0] for row in rows if len(row) > 1 and row[1] == "00000000"]
    likely = [found for found in known if found.startswith(("eth", "en", "ib", "bond"))]
    return f"there is no interface {name}: --set interface={[*out, *likely, *known][0]}"


def library_problem(library: Path, recipe: Path) -> str:
    """Return why recipe and library do not go together, or nothing.

    Source: verl fd893c7 (2025-12-04) took synchronous rollouts out of the library, d8e97e1 (2025-12-06) added the
    recipe, which has no other: verl 0.7.0 says «Rollout mode 'sync' has been removed».
    """
    if not (recipe / "main_gkd.py").is_file():
        return f"{recipe} has no main_gkd.py: the recipe is in verl's git tree alone, up to v0.7.0"
    registry = library / "verl/workers/rollout/base.py"
    if not registry.is_file() or '("vllm", "sync")' not in registry.read_text():
        return f"{library} is no verl with synchronous rollouts: the last one is ab07052 (2025-12-04)"
    return ""


def _routes() -> str:
    path = Path("/proc/net/route")
    return path.read_text() if path.is_file() else ""


def main() -> None:
    """Ask everything, and say all that is wrong at once."""
    parser = argparse.ArgumentParser(prog="gkd.check", description=__doc__)
    parser.add_argument("--actor-gpus", type=int, required=True)
    parser.add_argument("--rollout-gpus", type=int, required=True)
    parser.add_argument("--teacher-gpus", default="")
    parser.add_argument("--total-gpus", type=int, default=0, help="0: as many as the driver shows")
    parser.add_argument("--train-file", type=Path, required=True)
    parser.add_argument("--interface", default="")
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--without-recipe", action="store_true", help="verl's own distillation, which needs neither")
    args = parser.parse_args()
    visible = args.total_gpus or visible_gpus()
    teacher = [number for number in args.teacher_gpus.split(",") if number]
    found = {
        "gpus": split_problem(args.actor_gpus, args.rollout_gpus, teacher, visible),
        "data": data_problem(args.train_file),
        "interface": interface_problem(args.interface, _routes()),
        "library": "" if args.without_recipe else library_problem(args.library, args.recipe),
    }
    for name, problem in found.items():
        print(f"[{'FAIL' if problem else 'OK'}] {name}{': ' + problem if problem else ''}", flush=True)
    if any(found.values()):
        sys.exit(1)
    print(f"[check] passed: {visible} GPUs, Ray {os.environ.get('RAY_ADDRESS', 'starts with the run')}", flush=True)


if __name__ == "__main__":
    main()
