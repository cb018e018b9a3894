"""Run by the stack's own interpreter: start a Ray of one core, run one task, say how it went. Argument: its own folder.

The parts that only serve people and logs (dashboard, log monitor, autoscaler's monitor, the two agents) are left out:
they are Python programs that take longer to start than all the rest. gcs_server, raylet and a worker do the task, as in
a run.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

AGENTS = ("dashboard_agent_command", "runtime_env_agent_command")
# Ports that a raylet waits for its agents to write (Ray 2.60: raylet's node_manager.cc, "Timed out waiting for file").
PORTS = ("dashboard_agent_listen_port", "metrics_agent_port", "metrics_export_port", "runtime_env_agent_port")
DISCARD = "9"  # nothing listens there
STORE_BYTES = 80 << 20  # Ray refuses less than 75 MiB


def _disable_services() -> None:
    """Leave out what a task does not need; where Ray has other names, nothing is left out."""
    node: Any = importlib.import_module("ray._private.node")
    services: Any = importlib.import_module("ray._private.services")
    for name in ("start_monitor", "start_log_monitor"):
        if hasattr(node.Node, name):
            setattr(node.Node, name, lambda self: None)
    if hasattr(services, "start_api_server"):
        services.start_api_server = lambda *words, **names: ("", None)
    if hasattr(node, "wait_for_persisted_port"):
        services.start_ray_process = _wrap_without_agents(services.start_ray_process)


def _wrap_without_agents(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return Ray's `start_ray_process` with a raylet whose agents only sleep."""

    def started(command: list[str], *words: Any, **names: Any) -> Any:
        told = dict(word[2:].split("=", 1) for word in command if word.startswith("--") and "=" in word)
        if "session_dir" in told and AGENTS[0] in told:
            for port in PORTS:
                with open(f"{told['session_dir']}/{port}_{told['node_id']}", "w", encoding="utf-8") as file:
                    file.write(DISCARD)
            command = [f"--{agent}=/bin/sleep 60" if (agent := _agent(word)) else word for word in command]
        return start(command, *words, **names)

    return started


def _agent(word: str) -> str:
    name = word[2:].partition("=")[0]
    return name if name in AGENTS else ""


def _main() -> None:
    """Run one task; who started this ends what is left of it."""
    began = time.monotonic()
    step = "import"
    try:
        ray = importlib.import_module("ray")
        _disable_services()
        step = "start"
        ray.init(
            num_cpus=1,
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            logging_level="ERROR",
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=sys.argv[1],
            _node_ip_address="127.0.0.1",
        )
        step = "task"
        answer = ray.get(ray.remote(_add_one).remote(41))
        facts = {"ok": answer == 42, "error": "" if answer == 42 else f"the task returned {answer!r}"}
    except BaseException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        facts = {"ok": False, "error": f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]}
    facts |= {"step": step, "pid": os.getpid(), "seconds": round(time.monotonic() - began, 2)}
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    os.kill(os.getpid(), 9)  # `ray.shutdown` takes seconds more


def _add_one(value: int) -> int:
    return value + 1


if __name__ == "__main__":
    _main()
