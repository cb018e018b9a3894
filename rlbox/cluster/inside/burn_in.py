"""Run by the stack's own interpreter: be one rank, which proves its device and the way to the others.

Arguments: after how many seconds it gives up, RANK WORLD DEVICE HOST PORT; rank 0 listens at HOST. It prints a line of
JSON with `product`, and one with `reduce`. All numbers are whole, so that each result is exact, and a single wrong bit
of it is seen.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

GPU_SIDE, CPU_SIDE = 8192, 1024
GPU_FLOATS, CPU_FLOATS = 1 << 26, 1 << 22
ROUNDS = 5
WORK_S = 1.0


def report(**row: Any) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def give_up_after(limit_s: float) -> None:
    """End this process when it hangs: a collective that waits for its peer waits for ever."""

    def end() -> None:
        report(reduce={"said": "it has not ended in time"})
        os.kill(os.getpid(), signal.SIGKILL)  # it may hang where no exception comes through

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()


def multiply(torch: Any, device: str) -> dict[str, Any]:
    """Return `tflops`, and whether the last product is `wrong`: compared by its effect on a vector without zeros."""
    if device == "cpu":
        row: dict[str, Any] = {"name": platform.machine()}
    else:
        free, total = torch.cuda.mem_get_info(device)
        row = {"name": str(torch.cuda.get_device_properties(device).name), "free": free, "total": total}
    side, kind = (CPU_SIDE, torch.float32) if device == "cpu" else (GPU_SIDE, torch.bfloat16)
    left, right = (sparse_signs(torch, side, seed).to(device, kind) for seed in (1, 2))
    found = left @ right
    wait(torch, device)
    count, began = 0, time.monotonic()
    while time.monotonic() - began < WORK_S:
        found = torch.matmul(left, right)
        wait(torch, device)
        count += 1
    took = time.monotonic() - began
    generator = torch.Generator().manual_seed(3)
    vector = torch.randint(1, 9, (side,), generator=generator).to(device, torch.float64)
    wrong = not torch.equal(multiply_rows(torch, found, vector), multiply_twice(torch, left, right, vector))
    return {**row, "tflops": 2 * side**3 * count / took / 1e12, "wrong": wrong}


def sparse_signs(torch: Any, side: int, seed: int) -> Any:
    """Return a matrix of -1, 0 and 1, so thin that sums of products stay below 256: exact in bfloat16, too."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 9, (side, side), generator=generator, dtype=torch.int8)
    return (drawn == 0).to(torch.int8) - (drawn == 1).to(torch.int8)


def multiply_twice(torch: Any, left: Any, right: Any, vector: Any) -> Any:
    return multiply_rows(torch, left, multiply_rows(torch, right, vector))


def multiply_rows(torch: Any, matrix: Any, vector: Any) -> Any:
    """Return matrix times vector in double precision, some rows at a time: on a filled GPU there is little room."""
    return torch.cat([part.double() @ vector for part in matrix.split(512)])


def wait(torch: Any, device: str) -> None:
    """Wait until a device has done what it was given."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def all_reduce(torch: Any, rank: int, world: int, device: str, store_address: tuple[str, int], limit_s: float) -> Any:
    """Return how fast an all-reduce was (`bytes_s`), and how many sums were `wrong`."""
    distributed = importlib.import_module("torch.distributed")
    patience = timedelta(seconds=limit_s)
    store = distributed.TCPStore(*store_address, world, rank == 0, timeout=patience, wait_for_workers=False)
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
        wait(torch, device)
        began = time.monotonic()
        distributed.all_reduce(given)
        wait(torch, device)
        spans.append(time.monotonic() - began)
        wrong += int((given != right).sum())
    moved = size * 4 * 2 * (world - 1) / world
    distributed.barrier()
    distributed.destroy_process_group()
    return {"bytes_s": moved / statistics.median(spans[2:]), "wrong": wrong}


def run(work: Callable[[], Any]) -> Any:
    """Return what work returns, or why it failed."""
    try:
        return work()
    except Exception as error:
        return {"said": f"{type(error).__name__}: {error}".splitlines()[0][:300]}


def main() -> None:
    limit_s, rank, world, device, host, port = sys.argv[1:]
    give_up_after(float(limit_s))
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        report(missing=str(error))
        return
    report(product=run(lambda: multiply(torch, device)))
    if int(world) > 1:
        address = (host, int(port))
        report(reduce=run(lambda: all_reduce(torch, int(rank), int(world), device, address, float(limit_s))))


if __name__ == "__main__":
    main()
