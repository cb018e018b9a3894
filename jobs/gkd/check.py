"""All that a distillation run stands still for, asked before it starts, in less than a minute."""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

SLOW = 20e6  # bytes a second below which loading data looks like a hang


def split_problem(actor: int, teacher: int, visible: int) -> str:
    """Return what is wrong with the split of one node's GPUs, and the nearest one that fits; nothing when it fits."""
    if actor + teacher <= visible:
        return ""
    half = 1 << max(1, visible // 2).bit_length() - 1  # powers of two share out a batch and attention heads
    nearest = f"--set actor_gpus={half} --set teacher_gpus={half}"
    fits = nearest if 2 * half <= visible else "a machine with two GPUs"
    return f"{actor} actor + {teacher} teacher GPUs, {visible} are visible: {fits}"


def visible_gpus() -> int:
    """Return how many GPUs the driver shows; 0 without one."""
    try:
        listed = subprocess.run(("nvidia-smi", "-L"), capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def data_problem(path: Path) -> str:
    """Return why the training data cannot be read, or nothing."""
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
    """Return what is wrong with the network interface that NCCL is told to use, or nothing.

    Proposed is the one that the default route of `routes`, the text of /proc/net/route, leaves by.
    """
    known = [found for _, found in socket.if_nameindex()]
    if not name or name.lstrip("^=") in known:
        return ""
    rows = (line.split() for line in routes.splitlines())
    out = [row[0] for row in rows if len(row) > 1 and row[1] == "00000000"]
    likely = [found for found in known if found.startswith(("eth", "en", "ib", "bond"))]
    return f"there is no interface {name}: --set interface={[*out, *likely, *known][0]}"


def _routes() -> str:
    path = Path("/proc/net/route")
    return path.read_text() if path.is_file() else ""


def main() -> None:
    """Ask everything, and say all that is wrong at once."""
    parser = argparse.ArgumentParser(prog="gkd.check", description=__doc__)
    parser.add_argument("--actor-gpus", type=int, required=True)
    parser.add_argument("--teacher-gpus", type=int, required=True)
    parser.add_argument("--total-gpus", type=int, default=0, help="0: as many as the driver shows")
    parser.add_argument("--train-file", type=Path, required=True)
    parser.add_argument("--interface", default="")
    args = parser.parse_args()
    visible = args.total_gpus or visible_gpus()
    found = {
        "gpus": split_problem(args.actor_gpus, args.teacher_gpus, visible),
        "data": data_problem(args.train_file),
        "interface": interface_problem(args.interface, _routes()),
    }
    for name, problem in found.items():
        print(f"[{'FAIL' if problem else 'OK'}] {name}{': ' + problem if problem else ''}", flush=True)
    if any(found.values()):
        sys.exit(1)
    print(f"[check] passed: {visible} GPUs, Ray {os.environ.get('RAY_ADDRESS', 'starts with the run')}", flush=True)


if __name__ == "__main__":
    main()
