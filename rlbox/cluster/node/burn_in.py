"""Run by the stack's own interpreter: be one rank of an all-reduce over devices whose result is known.

Arguments: after how many seconds it gives up, RANK WORLD DEVICE HOST PORT; rank 0 listens at HOST. It prints a line of
JSON. All numbers are whole, so that each sum is exact, and a single wrong bit of it is seen.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import statistics
import sys
import threading
import time
from datetime import timedelta
from typing import Any

GPU_FLOATS, CPU_FLOATS = 1 << 26, 1 << 22
ROUNDS = 5


def _report(**row: Any) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def _give_up_after(limit_s: float) -> None:
    """End this process when it hangs: a collective that waits for its peer waits for ever."""

    def end() -> None:
        _report(error="it has not ended in time")
        os.kill(os.getpid(), signal.SIGKILL)  # it may hang where no exception comes through

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()


def _all_reduce(torch: Any, rank: int, world: int, device: str, host: str, port: int, limit_s: float) -> dict[str, Any]:
    """Return how fast it was (`bytes_s`), and how many sums were `wrong`."""
    distributed = importlib.import_module("torch.distributed")
    patience = timedelta(seconds=limit_s)
    store = distributed.TCPStore(host, port, world, rank == 0, timeout=patience, wait_for_workers=False)
    gpu = device != "cpu"
    if gpu:
        torch.cuda.set_device(device)
    backend = "nccl" if gpu else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=patience)
    size = GPU_FLOATS if gpu else CPU_FLOATS
    own = (torch.arange(size, device=device) % 251).to(torch.float32)
    right = own * world + world * (world - 1) // 2
    spans, wrong = [], 0
    for _ in range(ROUNDS + 2):
        given = own + rank
        distributed.barrier()
        if gpu:
            torch.cuda.synchronize(device)
        began = time.monotonic()
        distributed.all_reduce(given)
        if gpu:
            torch.cuda.synchronize(device)
        spans.append(time.monotonic() - began)
        wrong += int((given != right).sum())
    distributed.barrier()
    distributed.destroy_process_group()
    moved = size * 4 * 2 * (world - 1) / world
    return {"bytes_s": moved / statistics.median(spans[2:]), "wrong": wrong}


def _main() -> None:
    limit_s, rank, world, device, host, port = sys.argv[1:]
    _give_up_after(float(limit_s))
    try:
        torch = importlib.import_module("torch")
        _report(**_all_reduce(torch, int(rank), int(world), device, host, int(port), float(limit_s)))
    except ModuleNotFoundError as error:
        _report(missing=str(error))
    except Exception as error:
        _report(error=f"{type(error).__name__}: {error}".splitlines()[0][:300])


if __name__ == "__main__":
    _main()
