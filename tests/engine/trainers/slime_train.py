"""In the place of slime's train.py: what v0.2.2 binds.

Source: slime v0.2.2. `_start_router` (the router on SLIME_HOST_IP), `_allocate_rollout_engine_addr_and_ports_normal`
(each engine's server on the node's address from port 15000 on, then the stores of NCCL and its ranks), `TrainRayActor`
(the ranks' store on a port from 20000 on), `update_weight_from_distributed` (a store on a port of the kernel's).
"""

from __future__ import annotations

import os
import sys

import ray
import standin


@ray.remote(num_cpus=0)
class SGLangEngine:
    """An engine of SGLang: its server and the stores of its ranks."""

    def start(self) -> list[int]:
        self.stores = [standin.store(15001), standin.store(15002)]
        return [standin.serve(standin.node(), 15000), *(one.port for one in self.stores)]


@ray.remote(num_cpus=0)
class TrainActor:
    """A rank of Megatron's: its store, and that of the weights' way to the engines."""

    def start(self) -> list[int]:
        self.stores = [standin.store(20123), standin.store()]
        return [one.port for one in self.stores]


@ray.remote(num_cpus=0)
class RolloutManager:
    """Starts the router, as a child of its own."""

    def start(self, port: int) -> list[int]:
        return [standin.serve(os.environ["SLIME_HOST_IP"], port)]


ray.init("auto")
parts = [SGLangEngine.remote(), TrainActor.remote(), RolloutManager.remote()]
router = int(sys.argv[sys.argv.index("--sglang-router-port") + 1])
asked = [parts[0].start.remote(), parts[1].start.remote(), parts[2].start.remote(router)]
print("ports", ray.get(asked), flush=True)
standin.wait()
