"""In the place of verl.trainer.main_ppo: what v0.7.0 binds. It starts its own Ray.

Source: verl v0.7.0. `run_ppo` (ray.init), `get_master_addr_port` (the ranks' store on a port of the kernel's),
`run_unvicorn` (vLLM's server on the node's address, a port of the kernel's); vLLM 0.12 has /collective_rpc there with
VLLM_SERVER_DEV_MODE alone. With one node the workers' ZeroMQ is a file (`vLLMAsyncRollout._init_zeromq`).
"""

from __future__ import annotations

import os
import sys

import ray
import standin


@ray.remote(num_cpus=0)
class VLLMHttpServer:
    """The server of the rollout."""

    def start(self) -> list[int]:
        does = standin.DEEDS[:1] if os.environ.get("VLLM_SERVER_DEV_MODE") == "1" else ()
        return [standin.serve(standin.node(), does=does)]


@ray.remote(num_cpus=0)
class Worker:
    """The first rank of actor and reference."""

    def start(self) -> list[int]:
        self.store = standin.store()
        return [self.store.port]


@ray.remote(num_cpus=1)
class TaskRunner:
    """Runs the whole training."""

    def run(self) -> None:
        self.parts = [VLLMHttpServer.remote(), Worker.remote()]
        print("ports", ray.get([one.start.remote() for one in self.parts]), flush=True)
        standin.wait()


def main() -> None:
    """Start Ray as `run_ppo` does, and run the trainer's actor."""
    cpus = next(word.rpartition("=")[2] for word in sys.argv if word.startswith("ray_kwargs.ray_init.num_cpus="))
    ray.init(num_cpus=int(cpus), runtime_env={"env_vars": {"TOKENIZERS_PARALLELISM": "true"}})
    ray.get(TaskRunner.remote().run.remote())


if __name__ == "__main__":
    main()
