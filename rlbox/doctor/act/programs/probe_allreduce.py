"""Run by the stack's own interpreter: one process a GPU adds up a tensor over NCCL. Argument: how many.

As torchrun does, without its own rendezvous: the processes meet at a free port of the loopback.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from typing import Any


def take_part(rank: int, count: int) -> None:
    """Be one of the processes, and exit with 0 when the sum is right."""
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", rank=rank, world_size=count)
    ones = torch.ones(1 << 20, device="cuda")
    distributed.all_reduce(ones)
    if float(ones[0]) != count:
        raise SystemExit(f"the sum of {count} ones is {float(ones[0])}")
    distributed.destroy_process_group()


def main() -> None:
    """Start the processes, wait, and say how it went."""
    if "RANK" in os.environ and os.environ.get("RLBOX_ALLREDUCE"):
        take_part(int(os.environ["RANK"]), int(sys.argv[1]))
        return
    count = int(sys.argv[1])
    with socket.socket() as test:
        test.bind(("127.0.0.1", 0))
        port = test.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RLBOX_ALLREDUCE": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, str(count)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(count)
    ]
    said = [process.communicate()[1].decode("utf-8", "replace") for process in started]
    wrong = [text for process, text in zip(started, said, strict=True) if process.returncode]
    lines = [line.strip() for text in wrong for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "NCCL" in line or "Error" in line]
    sys.stdout.write(json.dumps({"step": "sum", "ok": not wrong, "error": (telling or lines or [""])[-1][:400]}) + "\n")


if __name__ == "__main__":
    main()
