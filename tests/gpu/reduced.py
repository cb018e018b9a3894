"""An all-reduce of whole numbers by two ranks, on GPUs by NCCL or on the processor by gloo, in one of two ways.

`reduced.py bare gpu|cpu RANK HOST PORT` is one rank by itself; `reduced.py job gpu|cpu` a job of Ray's with a rank on
each of its two nodes. Each tells a line of JSON: the median of the seconds, how many sums were wrong, and the device.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

ROUNDS, WARM = 25, 5


def reduce(kind: str, rank: int, host: str, port: int) -> dict[str, Any]:
    """Be one rank; return what it saw."""
    gpu = kind == "gpu"
    device = "cuda:0" if gpu else "cpu"
    store = dist.TCPStore(host, port, 2, rank == 0)
    dist.init_process_group("nccl" if gpu else "gloo", store=store, rank=rank, world_size=2)
    own = (torch.arange(1 << (26 if gpu else 22), device=device) % 251).float()
    spans, wrong = [], 0
    for _ in range(ROUNDS):
        given = own + rank
        dist.barrier()
        wait(gpu)
        began = time.monotonic()
        dist.all_reduce(given)
        wait(gpu)
        spans.append(time.monotonic() - began)
        wrong += int((given != own * 2 + 1).sum())
    dist.barrier()
    dist.destroy_process_group()
    name = torch.cuda.get_device_name() if gpu else device
    return {"seconds": statistics.median(spans[WARM:]), "wrong": wrong, "device": name}


def wait(gpu: bool) -> None:
    """Wait until the device has done what it was given."""
    if gpu:
        torch.cuda.synchronize()


def over_ray(kind: str) -> dict[str, Any]:
    """Return what the slower of two ranks saw, one on each node of Ray's."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def place() -> tuple[str, int]:
        with socket.socket() as one:
            one.bind(("", 0))
            return ray.util.get_node_ip_address(), one.getsockname()[1]

    ray.init(log_to_driver=False)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    on = [NodeAffinitySchedulingStrategy(one, soft=False) for one in nodes]
    (host, port), (other, _) = ray.get([ray.remote(place).options(scheduling_strategy=one).remote() for one in on])
    assert host != other, nodes
    rank = ray.remote(num_gpus=int(kind == "gpu"), num_cpus=0)(reduce)
    ranks = [rank.options(scheduling_strategy=one).remote(kind, at, host, port) for at, one in enumerate(on)]
    return max(ray.get(ranks), key=lambda told: told["seconds"])


if __name__ == "__main__":
    way, kind, *rest = sys.argv[1:]
    told = over_ray(kind) if way == "job" else reduce(kind, int(rest[0]), rest[1], int(rest[2]))
    print(json.dumps(told))
