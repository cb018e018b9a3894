"""Run by the stack's own interpreter: prove devices, or a way between nodes, by work whose result is known.

Arguments: after how many seconds it gives up, then `product`, or `rank` RANK WORLD DEVICE HOST PORT: rank 0 of an
all-reduce listens at HOST, and tells the port. Every row is a line of JSON. All numbers are whole, so that each result
is exact, and a single wrong bit of it is seen.
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
from datetime import timedelta
from typing import Any

GPU_SIDE, CPU_SIDE = 8192, 1024
GPU_FLOATS, CPU_FLOATS = 1 << 26, 1 << 22
ROUNDS = 5
WORK_S = 1.0


def tell(**row: Any) -> None:
    """Tell one row."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def give_up_after(limit_s: float) -> None:
    """End this process when it hangs: a collective that waits for its peer waits for ever."""

    def end() -> None:
        tell(said="it has not ended in time")
        os.kill(os.getpid(), signal.SIGKILL)  # it may hang where no exception comes through

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()


def devices(torch: Any) -> list[str]:
    """Return the GPUs, or the processor where there is none."""
    return [f"cuda:{at}" for at in range(torch.cuda.device_count())] or ["cpu"]


def prove_products(torch: Any) -> None:
    """Tell of every device how fast it multiplies matrices, and whether the product is right."""
    for device in devices(torch):
        row: dict[str, Any] = {"device": device, "name": device_name(torch, device)}
        try:
            if device != "cpu":
                row["free"], row["total"] = torch.cuda.mem_get_info(device)
            tell(**row, **product(torch, device))
        except Exception as error:
            tell(**row, said=f"{type(error).__name__}: {error}".splitlines()[0][:300])


def device_name(torch: Any, device: str) -> str:
    """Return of which kind a device is."""
    return platform.machine() if device == "cpu" else str(torch.cuda.get_device_properties(device).name)


def product(torch: Any, device: str) -> dict[str, Any]:
    """Return `tflops`, and whether the last product is `wrong`: compared by its effect on a vector without zeros."""
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
    wrong = not torch.equal(times(found, vector), times(left, times(right, vector)))
    return {"tflops": 2 * side**3 * count / took / 1e12, "wrong": wrong}


def sparse_signs(torch: Any, side: int, seed: int) -> Any:
    """Return a matrix of -1, 0 and 1, so thin that sums of products stay below 256: exact in bfloat16, too."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 9, (side, side), generator=generator, dtype=torch.int8)
    return (drawn == 0).to(torch.int8) - (drawn == 1).to(torch.int8)


def times(matrix: Any, vector: Any) -> Any:
    """Return matrix times vector in double precision, some rows at a time: on a filled GPU there is little room."""
    parts = [part.double() @ vector for part in matrix.split(512)]
    return importlib.import_module("torch").cat(parts)


def wait(torch: Any, device: str) -> None:
    """Wait until a device has done what it was given."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def prove_rank(torch: Any, rank: int, world: int, device: str, host: str, port: int, limit_s: float) -> None:
    """Be one rank of an all-reduce; tell how fast it was, and whether the sums are right."""
    distributed = importlib.import_module("torch.distributed")
    patience = timedelta(seconds=limit_s)
    store = distributed.TCPStore(host, port, world, rank == 0, timeout=patience, wait_for_workers=False)
    if rank == 0:
        tell(port=store.port)
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
    tell(rank=rank, bytes_s=moved / statistics.median(spans[2:]), wrong=wrong)
    distributed.barrier()
    distributed.destroy_process_group()


def main() -> None:
    """Do what the arguments say."""
    limit_s, what, *rest = sys.argv[1:]
    give_up_after(float(limit_s))
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        tell(missing=str(error))
        return
    if what == "product":
        prove_products(torch)
        return
    rank, world, device, host, port = rest
    try:
        prove_rank(torch, int(rank), int(world), device, host, int(port), float(limit_s))
    except Exception as error:
        tell(said=f"{type(error).__name__}: {error}".splitlines()[0][:300])


if __name__ == "__main__":
    main()
