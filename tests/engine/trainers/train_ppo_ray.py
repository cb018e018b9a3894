"""In the place of openrlhf.cli.train_ppo_ray: what 0.10.4 binds.

Source: OpenRLHF 0.10.4, `BaseModelActor` (the ranks' store on a port of the kernel's), `PolicyTrainerRay` (a store for
the weights' way to vLLM, whose engines are actors without a server), `remote_rm_fn` (POST to the reward server).
"""

from __future__ import annotations

import json
import sys
import urllib.request

import ray
import standin


@ray.remote(num_cpus=0)
class PolicyModelActor:
    """The first rank of the actor, and the store over which vLLM gets its weights."""

    def start(self) -> list[int]:
        self.stores = [standin.store(), standin.store()]
        return [one.port for one in self.stores]


url = sys.argv[sys.argv.index("--reward.remote_url") + 1]
body = json.dumps({"query": [], "prompts": [], "labels": []}).encode()
ask = urllib.request.Request(url, body, {"Content-Type": "application/json"})
with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(ask, timeout=60) as answer:
    print("rewards:", json.load(answer), flush=True)
ray.init("auto")
actor = PolicyModelActor.remote()
print("ports", ray.get(actor.start.remote()), flush=True)
standin.wait()
