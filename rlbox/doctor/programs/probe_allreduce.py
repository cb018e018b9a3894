"""Run by the stack's own interpreter: one process a GPU adds up a tensor over NCCL. Argument: how many.

As torchrun does, without its own rendezvous: the processes meet at a free port of the loopback.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from typing import Any


def _run_rank(rank: int, count: int) -> None:
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", rank=rank, world_size=count)
    ones = torch.ones(1 << 20, device="cuda")
    distributed.all_reduce(ones)
    if float(ones[0]) != count:
        raise RuntimeError(f"the sum of {count} ones is {float(ones[0])}")
    distributed.destroy_process_group()


def _main() -> None:
    count = int(sys.argv[1])
    with socket.socket() as test:
        test.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(test.getsockname()[1])}
    lines: list[str] = []
    try:
        importlib.import_module("torch.multiprocessing").spawn(_run_rank, args=(count,), nprocs=count)
    except Exception as error:  # it holds the words of the first process that failed
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    telling = [line for line in lines if "NCCL" in line or "Error" in line]
    sys.stdout.write(json.dumps({"step": "sum", "ok": not lines, "error": (telling or lines or [""])[-1][:400]}) + "\n")


if __name__ == "__main__":
    _main()
