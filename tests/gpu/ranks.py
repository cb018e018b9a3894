"""Ranks of a small training that stand still, or work without a word: `ranks.py CASE SECONDS`; see `hangs.py`."""

from __future__ import annotations

import fcntl
import os
import sys
import time

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
CASE, SECONDS = sys.argv[1], float(sys.argv[2])
FOLDER = os.environ["RANKS_FOLDER"]
X = torch.ones(1 << 24, device=f"cuda:{RANK}")


def all_ranks_meet() -> None:
    dist.all_reduce(X)
    torch.cuda.synchronize()


def sleep_for_ever() -> None:
    time.sleep(3600)


def read_batch_from_pipe() -> None:
    reads, _writes = os.pipe()
    os.read(reads, 1)


def wait_for_file_lock() -> None:
    with open(f"{FOLDER}/lock", "w") as other, open(f"{FOLDER}/lock", "w") as mine:
        fcntl.flock(other, fcntl.LOCK_EX)
        fcntl.flock(mine, fcntl.LOCK_EX)


class NeverLoaded(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        time.sleep(3600)
        return index


def next_batch_of_workers() -> None:
    next(iter(torch.utils.data.DataLoader(NeverLoaded(), num_workers=1)))


def die() -> None:
    os.kill(os.getpid(), 9)


FAULTS = {
    "sleep": sleep_for_ever,
    "busy": sleep_for_ever,
    "pipe": read_batch_from_pipe,
    "lock": wait_for_file_lock,
    "loader": next_batch_of_workers,
    "killed": die,
}


def other_collective() -> None:
    while True:  # a first pair may end by chance
        if RANK == 0:
            dist.all_reduce(X)
        else:
            dist.broadcast(X, 0)
        torch.cuda.synchronize()


def other_group() -> None:
    """The last rank waits for the others on CPUs, they wait for it on GPUs."""
    cpu = dist.new_group(backend="gloo")
    if dist.get_world_size() - 1 == RANK:
        dist.barrier(group=cpu)
    all_ranks_meet()


def groups_in_other_order(*, used_before: bool) -> None:
    """Two groups of all ranks; the last rank enters them in the other order. New ones connect first, on the CPU."""
    groups = [dist.new_group(), dist.new_group()]
    for group in groups if used_before else ():
        dist.all_reduce(X, group=group)
        torch.cuda.synchronize()
    if dist.get_world_size() - 1 == RANK:
        groups.reverse()
    for group in groups:
        dist.all_reduce(X, group=group)
        torch.cuda.synchronize()


def receive_instead() -> None:
    """The last rank waits for a message of rank 0, which waits in a collective."""
    if dist.get_world_size() - 1 == RANK:
        dist.recv(X, 0)
        torch.cuda.synchronize()
    all_ranks_meet()


def retry_after_pause() -> None:
    """The last rank sleeps as one that asks a server again; the others wait."""
    if dist.get_world_size() - 1 == RANK:
        time.sleep(45)


ALL_RANKS = {
    "mismatch": other_collective,
    "gloo": other_group,
    "groups": lambda: groups_in_other_order(used_before=True),
    "new-groups": lambda: groups_in_other_order(used_before=False),
    "lazy-groups": lambda: groups_in_other_order(used_before=False),
    "p2p": receive_instead,
}


def evaluate() -> None:
    """Rank 0 alone computes in Python; the others wait."""
    until, number = time.time() + SECONDS, 1
    while RANK == 0 and time.time() < until:
        number = number * 7 % 1000003


def save() -> None:
    until, block = time.time() + SECONDS, os.urandom(64 << 20)
    while RANK == 0 and time.time() < until:
        with open(f"{FOLDER}/checkpoint", "wb") as file:
            for _ in range(64):
                file.write(block)
            os.fsync(file.fileno())


def load() -> None:
    until = time.time() + SECONDS
    with open(f"{FOLDER}/weights-{RANK}", "wb") as file:
        file.write(os.urandom(256 << 20))
    while time.time() < until:
        handle = os.open(f"{FOLDER}/weights-{RANK}", os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        with os.fdopen(handle, "rb") as file:
            torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).to(X.device)


def compile_kernels() -> None:
    until, width = time.time() + SECONDS, 64
    while time.time() < until:
        width += 8
        torch._dynamo.reset()
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8)), torch.nn.GELU()).to(X.device)
        torch.compile(model, mode="max-autotune-no-cudagraphs")(torch.randn(32, width, device=X.device))


def long_kernels() -> None:
    a = torch.randn(16384, 16384, device=X.device, dtype=torch.bfloat16)
    until = time.time() + SECONDS
    while time.time() < until:
        for _ in range(1000):  # some ten seconds between two looks of this program
            torch.mm(a, a)
        torch.cuda.synchronize()


def optimizer_on_cpu() -> None:
    until = time.time() + SECONDS
    weights = torch.randn(1 << 25, requires_grad=True)
    adam = torch.optim.Adam([weights])
    while time.time() < until:
        weights.grad = torch.randn_like(weights)
        adam.step()


HEALTHY = {
    "evaluate": evaluate,
    "save": save,
    "load": load,
    "compile": compile_kernels,
    "kernels": long_kernels,
    "optimizer": optimizer_on_cpu,
    "pause": retry_after_pause,
}


def main() -> None:
    torch.cuda.set_device(X.device)
    # with a device the communicators of groups are split off at once; else each is made at its first call
    dist.init_process_group("nccl", device_id=None if CASE in ("groups", "lazy-groups") else X.device)
    for step in range(1, 12):
        all_ranks_meet()
        time.sleep(0.2)
        if RANK == 0:
            print(f"step {step}/100", flush=True)
    if RANK == 0:
        print(f"fault at {time.time()}", flush=True)
    if CASE in ALL_RANKS:
        ALL_RANKS[CASE]()
    elif CASE in FAULTS and dist.get_world_size() - 1 == RANK:
        FAULTS[CASE]()
    for name in HEALTHY if CASE == "healthy" else ():
        if RANK == 0:
            print(f"{name} begins", flush=True)
        HEALTHY[name]()
        all_ranks_meet()
    all_ranks_meet()
    print("all met", flush=True)


main()
