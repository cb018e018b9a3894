"""Run by the stack's own interpreter: tell the nodes of a Ray cluster, a line of JSON each time that something changed.

Arguments: address of the GCS, and for how many seconds; 0: once. Behind them the nodes that are waited for, each
NAME=GPUS, and the lives of nodes that were ended, each -ID, of which Ray calls some alive still: it ends once all nodes
are there and none of those is. It asks the GCS and joins nothing.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import time
from typing import Any

_LISTENS_S = 5


def connect(address: str) -> Any:
    """Return the state of the GCS; the words are the same from Ray 2.43 to 2.60.

    Ray is imported once it listens: until then the import would keep its start waiting.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _LISTENS_S).close()
    raylet: Any = importlib.import_module("ray._raylet")
    state = importlib.import_module("ray._private.state").GlobalState()
    options = raylet.GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    state._initialize_global_state(options)
    return state


def rows(state: Any) -> list[dict[str, Any]]:
    """Return the nodes as plain values."""
    free = state.available_resources_per_node()
    return [
        {
            "id": node.get("NodeID", ""),
            "name": node.get("NodeName", ""),
            "address": node.get("NodeManagerAddress", ""),
            "alive": bool(node.get("Alive")),
            "total": node.get("Resources") or {},
            "free": free.get(node.get("NodeID"), {}),
            "why": node.get("DeathReasonMessage", ""),
        }
        for node in state.node_table()
    ]


def told_of(found: list[dict[str, Any]], ended: set[str]) -> dict[str, Any]:
    """Return what is told: the nodes without the lives that were ended, and whose of those Ray has not given up."""
    return {
        "nodes": [node for node in found if node["id"] not in ended],
        "leaving": sorted({node["name"] for node in found if node["id"] in ended and node["alive"]}),
    }


def are_there(told: dict[str, Any], wanted: dict[str, float]) -> bool:
    """Return whether every node that is waited for is alive, with its GPUs, and nothing of those before."""
    gpus = {node["name"]: node["total"].get("GPU", 0) for node in told.get("nodes", ()) if node["alive"]}
    there = all(gpus.get(name, -1) >= count for name, count in wanted.items())
    return bool(wanted) and there and not told.get("leaving")


_PATIENCE_S, _BEHIND = 30, 19


def main() -> None:
    """Tell until the time is over, or all that is waited for is there."""
    address, seconds = sys.argv[1], float(sys.argv[2])
    ended = {word[1:] for word in sys.argv[3:] if word.startswith("-")}
    words = [word.rpartition("=") for word in sys.argv[3:] if not word.startswith("-")]
    wanted = {name: float(count) for name, _, count in words}
    if seconds:
        os.nice(_BEHIND)  # the start that it watches goes first
    else:
        signal.alarm(_PATIENCE_S)  # a call to a GCS that is halted never returns
    until, told, state = time.monotonic() + seconds, "", None
    while True:
        try:
            state = state or connect(address)
            now = told_of(rows(state), ended)
        except Exception as error:
            state, now = None, {"said": f"{type(error).__name__}: {error}"[:300]}
        line = json.dumps(now, sort_keys=True)
        if line != told:
            told = line
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        if are_there(now, wanted) or time.monotonic() > until:
            return
        time.sleep(0.25)


if __name__ == "__main__":
    main()
