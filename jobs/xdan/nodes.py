"""The cluster's check: wait for the nodes, then look from each of them for the files and the reward server."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

from xdan.program import JobError, run

PAUSE_S = 2.0


def look(paths: tuple[str, ...], url: str) -> dict[str, Any]:
    """Return what one node lacks: `host`, and `problems` as texts."""
    problems = [f"{path} is not there" for path in paths if not os.path.exists(path)]
    body = json.dumps({"query": [], "prompts": [], "labels": []}).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
        with opener.open(request, timeout=20) as reply:
            if "rewards" not in json.load(reply):
                problems.append(f"{url} answers, but not as a reward server")
    except (OSError, ValueError) as error:
        problems.append(f"{url} does not answer: {error}")
    return {"host": socket.gethostname(), "problems": problems}


def digest(path: str) -> str:
    """Return the checksum of a file, empty where it is not there."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def lay(path: str, data: bytes) -> str:
    """Write a file of another node here unless the very same is there; return why it could not be written."""
    if digest(path) == hashlib.sha256(data).hexdigest():
        return ""
    draft = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(draft, "wb") as file:
            file.write(data)
        os.replace(draft, path)
    except OSError as error:
        return f"{path} cannot be laid there: {error.strerror}"
    return ""


def probe_attention(attention: str) -> tuple[str, str]:
    """Return which attention this node's environment has, `attention` and its version, and why it has none."""
    if attention != "flash_attention_2":
        return attention, ""
    try:
        import flash_attn
        from flash_attn.flash_attn_interface import flash_attn_func  # noqa: F401  (a namesake package lacks it)
    except (ImportError, OSError) as error:
        return (
            "",
            f"FlashAttention 2 is not in the environment ({error}): attention=sdpa, or --target cluster-2node-flash",
        )
    return f"{attention}, flash-attn {flash_attn.__version__}", ""


def look_with(paths: tuple[str, ...], url: str, brought: dict[str, bytes], attention: str) -> dict[str, Any]:
    """Lay what is brought on this node, then return what it lacks and which attention it has."""
    failed = [why for path, data in brought.items() if (why := lay(path, data))]
    found = look((*paths, *brought), url)
    has, lacks = probe_attention(attention)
    return {**found, "attention": has, "problems": failed + found["problems"] + ([lacks] if lacks else [])}


def alive(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the nodes of `ray.nodes()` that are alive."""
    return [node for node in nodes if node.get("Alive")]


def lacking(nodes: list[dict[str, Any]], wanted: int, gpus: int) -> str:
    """Return what the cluster lacks, or nothing: the number of nodes that are alive, and of their GPUs."""
    there = alive(nodes)
    have = sum(node.get("Resources", {}).get("GPU", 0) for node in there)
    if len(there) >= wanted and have >= gpus:
        return ""
    hosts = ", ".join(sorted(str(node.get("NodeManagerHostname", "?")) for node in there)) or "none"
    return f"{len(there)} of {wanted} nodes, {have:g} of {gpus} GPUs ({hosts})"


def wait(wanted: int, gpus: int, limit_s: float) -> list[dict[str, Any]]:
    """Return the nodes once all are there. Raises JobError when that takes too long."""
    import ray

    until, told = time.monotonic() + limit_s, ""
    while problem := lacking(ray.nodes(), wanted, gpus):
        if problem != told:
            print(f"[xdan][nodes] waiting: {problem}", flush=True)
            told = problem
        if time.monotonic() > until:
            address = ray.get_runtime_context().gcs_address
            raise JobError(
                f"the cluster has {problem} after {limit_s:g} s; on each worker: ray-start worker --address={address}"
            )
        time.sleep(PAUSE_S)
    return alive(ray.nodes())


def main() -> None:
    """Wait for the cluster and look from each of its nodes."""
    parser = argparse.ArgumentParser(prog="xdan.nodes", description=__doc__)
    parser.add_argument("--nodes", type=int, required=True, help="how many nodes there must be")
    parser.add_argument("--gpus", type=int, required=True, help="how many GPUs they must have in all")
    parser.add_argument("--url", required=True, help="the reward server's /get_reward as the trainer is told")
    parser.add_argument("--wait", type=float, default=600, help="longest wait, seconds")
    parser.add_argument("--bring", action="append", default=[], help="file of this node that every other gets, too")
    parser.add_argument("--attention", default="sdpa", help="attention that each node must have")
    parser.add_argument("paths", nargs="*", help="what must be there on every node")
    args = parser.parse_args()
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address="auto", log_to_driver=False)
    task = ray.remote(num_cpus=0)(look_with)
    nodes = wait(args.nodes, args.gpus, args.wait)
    brought = {path: Path(path).read_bytes() for path in args.bring}
    asked = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            tuple(args.paths), args.url, brought, args.attention
        )
        for node in nodes
    ]
    found = ray.get(asked, timeout=120)
    for node in found:
        print(f"[xdan][nodes] {node['host']}: {'; '.join(node['problems']) or 'fit'}", flush=True)
    if bad := [node for node in found if node["problems"]]:
        raise JobError(f"{bad[0]['host']}: {'; '.join(bad[0]['problems'])}")
    print(f"[xdan][nodes] attention {found[0]['attention']}", flush=True)
    print(f"[xdan][nodes] passed: {len(found)} nodes", flush=True)


if __name__ == "__main__":
    run("xdan.nodes", main)
