"""In the place of openrlhf.cli.train_ppo_ray without GPUs: it reads the options of 0.10.4 and works on every node.

Each node of the cluster gets a rank. In each update every rank asks the reward server about a prompt, and all
add up what all have, over the wire. The lines are those that OpenRLHF prints.
"""

from __future__ import annotations

import json
import struct
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy
import optionbox
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

OPTIONS = vars(optionbox.read(optionbox.parser_of(Path(__file__).with_name("options.txt")), sys.argv[1:]))


@ray.remote(num_cpus=0, max_restarts=0)
class Rank:
    """The actor's rank on one node."""

    def own(self, rank: int) -> Any:
        return numpy.full(1 << 18, rank + 1.0)

    def update(self, url: str, prompt: str, label: str, *parts: Any) -> tuple[str, float, float]:
        body = {"query": [prompt + r"\boxed{" + label + "}"], "prompts": [prompt], "labels": [label]}
        ask = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(ask, timeout=60) as answer:
            reward = json.load(answer)["rewards"][0]
        print("asked", url, "on", ray.util.get_node_ip_address(), flush=True)
        return ray.util.get_node_ip_address(), reward, float(sum(parts).mean())


def save(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
    (folder / "config.json").write_text("{}")


def main() -> None:
    rows = [json.loads(line) for line in Path(OPTIONS["data.prompt_dataset"]).read_text().splitlines()]
    ray.init("auto")
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    assert len(nodes) == OPTIONS["actor.num_nodes"], nodes
    ranks = [Rank.options(scheduling_strategy=On(node, soft=False)).remote() for node in nodes]
    print(f"Starting experience making with {len(rows)} samples; resumed: {OPTIONS['ckpt.load_enable']}", flush=True)
    for step in range(1, OPTIONS["train.num_episodes"] + 1):
        parts = [rank.own.remote(at) for at, rank in enumerate(ranks)]
        row = rows[step % len(rows)]
        asked = (OPTIONS["reward.remote_url"], row[OPTIONS["data.input_key"]], row[OPTIONS["data.label_key"]])
        told = ray.get([rank.update.remote(*asked, *parts) for rank in ranks])
        assert all(total == sum(range(1, len(ranks) + 1)) for _, _, total in told), told
        reward = sum(one for _, one, _ in told) / len(told)
        where = sorted(one for one, _, _ in told)
        print(f"Global step {step}: {{'reward': {reward}, 'kl': 0.0, 'vllm_kl': 0.0, 'nodes': {where}}}")
        sys.stdout.flush()
        time.sleep(0.2)
    save(Path(OPTIONS["ckpt.output_dir"]))


if __name__ == "__main__":
    main()
