"""In the place of verl's recipe/gkd/main_gkd.py, v0.7.0: it starts its own Ray and asks the teacher over ZeroMQ.

Source: verl v0.7.0, `run_on_policy_distill` (ray.init), `TeacherClient` (REQ to the teacher), and the library at
ab07052: `get_master_addr_port`, `run_unvicorn`.
"""

from __future__ import annotations

from typing import Any

import ray
import standin


class OnPolicyDistillTrainer:
    """What the job's own runner puts its lines around."""


@ray.remote(num_cpus=0)
class Worker:
    """The first rank of actor or rollout; the weights' way between them has a store, too."""

    def start(self) -> list[int]:
        self.stores = [standin.store(), standin.store()]
        return [one.port for one in self.stores]


@ray.remote(num_cpus=1)
class TaskRunner:
    """Runs the whole distillation."""

    def run(self, config: dict[str, str]) -> None:
        import pickle

        import zmq

        teacher = zmq.Context().socket(zmq.REQ)
        teacher.connect("tcp://127.0.0.1:" + config["actor_rollout_ref.teacher.server_port"])
        teacher.send(pickle.dumps({"prompt_token_ids": [[1, 2]]}))
        print("teacher:", pickle.loads(teacher.recv())["status"], flush=True)
        self.parts = [Worker.remote(), Worker.remote()]
        print("ports", ray.get([one.start.remote() for one in self.parts]), flush=True)
        standin.wait()


def run_on_policy_distill(config: Any) -> None:
    """Start Ray as the recipe does, and run the trainer's actor."""
    ray.init(runtime_env={"env_vars": {"TOKENIZERS_PARALLELISM": "true"}}, num_cpus=4)
    ray.get(TaskRunner.remote().run.remote(config))
